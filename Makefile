# One command for each chore; `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Empty is as if not set: where the environment forbids compiled modules, each process that tests start compiles ours again.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed
CHECKERS := $(VENV)/.checkers
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# What tests import most of, and parts of it that they do not; other modules are compiled when they are imported, if ever.
COMPILED := torch sympy mpmath numpy networkx transformers huggingface_hub accelerate hypothesis _pytest triton botocore rich trio
RARE := /(tests|benchmarks)/|sympy/(physics|stats|parsing)|torch/_vendor|transformers/(models|pipelines|exporters)|numpy/(distutils|f2py|ma)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all sanitize sanitize-gpu lint style types types-newest bench docs docs-site report-ui screenshots clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## Make the virtual environment and install the project, with all that its tests need

# What style, types and the site need, without torch: `make -j2 install lint docs-site` checks while it installs the rest,
# which pip does on one core. Types of packages that are not here and not named in pyproject.toml are errors.
$(CHECKERS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	# the one that comes with Python 3.11 looks for three times as long at what an index offers
	$(PIP) --upgrade 'pip>=25,<28'
	$(PIP) -c constraints.txt mkdocs mkdocs-material 'mkdocstrings[python]' \
		filelock packaging platformdirs pluggy rich cryptography pytest ruff mypy
	@touch $@

$(STAMP): $(CHECKERS)
	$(PIP) -c constraints.txt -e '.[dev,demo,docs,stores]'
	# pip would compile 17,000 modules in one process; tests import a fifth of them, and some are templates
	$(BIN)/python -m compileall -qq -j 0 -x '$(RARE)' $(COMPILED:%=$(VENV)/lib/*/site-packages/%) || true
	@touch $@

demo: $(STAMP) ## Compile small models with Polyfuse and compare them with eager mode
	$(BIN)/python examples/demo.py

test: $(STAMP) ## Run the tests, without the slow ones
	# each worker would collect those for a GPU, only to leave them out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder -m "not gpu and not slow" \
		--ignore=tests/gpu

test-all: $(STAMP) types-newest ## Run all tests that this machine can run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

# What kernels, host programs and packages do to memory, and what C++ leaves undefined. `CXX` takes flags along. Tests
# that ask for more memory than there is are answered as without sanitizers; a report goes to the terminal, since it
# ends the process and pytest could not show it. g++ 13 lays vectors of 64 bytes at wrong addresses where it looks for
# uses of a stack after return.
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1:detect_stack_use_after_return=0 \
	UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 POLYFUSE_DISABLE=halide \
	CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	CXX="g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined"

sanitize: $(STAMP) ## Build all C++ with the address and undefined-behaviour sanitizers, and run it (an hour)
	$(SANITIZED) $(BIN)/python -m pytest -q --capture=sys -p no:cacheprovider tests/conformance/test_cpp.py tests/fuzz \
		tests/models/test_forward.py tests/models/test_gradients.py tests/plugins/cpp/test_native_host.py \
		tests/plugins/cpp/test_models.py tests/reliability/test_hostile_packages.py -k "not bombs"

# racecheck does not get beyond launches from several threads at once, which are a check of the contract.
sanitize-gpu: $(STAMP) ## Run the conformance kit of Triton under compute-sanitizer's four tools (needs a GPU)
	for tool in memcheck "racecheck --kernel-name-exclude kns=at::" synccheck initcheck; do \
		case "$$tool" in racecheck*) part="--kernels -j 8";; *) part=;; esac; \
		compute-sanitizer --tool $$tool --error-exitcode 9 --target-processes all \
			$(BIN)/python -m polyfuse conformance triton --quick --device cuda $$part || exit 1; \
	done

lint: style types ## Check style and types

style: $(CHECKERS)
	$(BIN)/ruff check core plugins tests tools benchmarks examples

types: $(CHECKERS)
	$(BIN)/mypy

types-newest: $(CHECKERS) ## Check types against the standard library of the newest Python
	$(BIN)/mypy --python-version 3.14

bench: $(STAMP) ## Measure against eager mode and Inductor
	PYTHONPATH=benchmarks $(BIN)/python -m polyfuse_bench all

docs: $(STAMP) ## Write again what is made from the code: reference, tour, guide, support matrix, results
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python -m pytest -q tests/docs --update-golden
	$(BIN)/python tools/support_matrix.py
	PYTHONPATH=benchmarks $(BIN)/python -m polyfuse_bench report

docs-site: $(CHECKERS) ## Build the documentation as a site, site/index.html; fails on a warning or a dead link
	$(BIN)/python tools/build_site.py site

report-ui: ## Build the page of `polyfuse report` from tools/report_ui; needs npm
	cd tools/report_ui && npm ci --no-audit --no-fund && npm run check && npm run build

screenshots: $(STAMP) ## Take the pictures of docs/report.md; needs Chromium
	$(BIN)/python tools/report_screenshots.py

clean: ## Remove the virtual environment and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
