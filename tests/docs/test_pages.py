"""Pages of docs say what is so: code from files that run, commands that exist, links that lead somewhere."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest
from polyfuse_bench import report
from polyfuse_bench.report_autotuning import autotuning_table
from polyfuse_bench.report_chart import kernels_chart, speed_chart
from polyfuse_bench.report_engines import engines_chart, engines_readme
from polyfuse_bench.report_summary import readme_table

from docs.blocks import check, fenced, part
from house.source_tree import ROOT
from polyfuse.base.settings import option_infos
from polyfuse.cli import COMMANDS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))
EXAMPLE = ROOT / "examples" / "third_party_backend"
MINIMAL = ROOT / "examples" / "minimal_backend"
ACCELERATOR = ROOT / "examples" / "accelerator"


def excerpt(name: str, of: str) -> str:
    """A part of an example of one file."""
    return fenced("python", part((ROOT / "examples" / of).read_text(encoding="utf-8"), name))


@pytest.mark.parametrize(
    ("page", "name", "of"),
    [
        ("ir-text", "round-trip", "kernel_text.py"),
        ("architecture", "statements", "kernel_statements.py"),
    ],
)
def test_pages_show_kernels_of_examples(
    request: pytest.FixtureRequest, page: str, name: str, of: str
) -> None:
    update = request.config.getoption("--update-golden")
    check(ROOT / "docs" / f"{page}.md", {name: excerpt(name, of)}, update)


def test_the_guide_for_authors_shows_the_example(request: pytest.FixtureRequest) -> None:
    def file(name: str, language: str = "python", example: Path = EXAMPLE) -> str:
        return fenced(language, (example / name).read_text(encoding="utf-8"))

    blocks = {
        "tiny": excerpt("tiny", "tiny_backend.py"),
        "tiny-call": excerpt("tiny-call", "tiny_backend.py"),
        "lying": excerpt("lying", "planted_defect.py"),
        "defects": file("tests/test_defects.py"),
        "minimal": file("polyfuse_minimal.py", example=MINIMAL),
        "minimal-program": file("program.py", example=MINIMAL),
        "minimal-pyproject": file("pyproject.toml", "toml", MINIMAL),
        "pyproject": file("pyproject.toml", "toml"),
        "manifest": file("polyfuse_numpy/manifest.py"),
        "backend": file("polyfuse_numpy/backend.py"),
        "kernel": file("polyfuse_numpy/kernel.py"),
        "lowerings": file("polyfuse_numpy/lowerings.py"),
        "rewrites": file("polyfuse_numpy/rewrites.py"),
        "conformance": file("tests/test_conformance.py"),
    }
    check(ROOT / "docs" / "writing-a-backend.md", blocks, request.config.getoption("--update-golden"))


def test_the_guide_for_accelerators_shows_the_example(request: pytest.FixtureRequest) -> None:
    def file(name: str) -> str:
        text = (ACCELERATOR / "polyfuse_sim" / name).read_text(encoding="utf-8")
        why = "<!-- not run: tests/devices/test_accelerator.py runs it, installed -->"
        return f"{why}\n\n{fenced('python', text)}"

    blocks = {
        "use": file("../use.py"),
        "init": file("__init__.py"),
        "device": file("device.py"),
        "manifest": file("manifest.py"),
        "backend": file("backend.py"),
    }
    check(ROOT / "docs" / "new-accelerator.md", blocks, request.config.getoption("--update-golden"))


def test_the_summary_of_conformance_is_that_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page = importlib.import_module("support_matrix")
    sections = page.sections(page.PAGE.read_text(encoding="utf-8"))
    assert page.summary(sections) == page.SUMMARY.read_text(encoding="utf-8"), "run tools/support_matrix.py"
    assert {"minimal", "numpy", "sim on sim"} <= sections.keys()
    assert all(", 0 failed." in text for text in sections.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", text):
        assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


def test_the_numbers_of_the_readme_are_those_of_the_results() -> None:
    groups = report.speed_groups(report.RESULTS)
    assert str(readme_table(groups)) in (ROOT / "README.md").read_text(encoding="utf-8"), "run `make docs`"
    drawings = {"speed": speed_chart(groups), "kernels": kernels_chart(groups)}
    drawings["engines"] = engines_chart(report.RESULTS)
    for name, drawing in drawings.items():
        path = ROOT / "docs" / f"{name}.svg"
        assert drawing == (path.read_text(encoding="utf-8") if path.exists() else None), "run `make docs`"
    assert (engines_readme(report.RESULTS) or "") in (ROOT / "README.md").read_text(encoding="utf-8")
    table = autotuning_table(groups, report.RESULTS)
    assert str(table) in (ROOT / "docs" / "autotuning.md").read_text(encoding="utf-8"), "run `make docs`"
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert report.performance_page(report.RESULTS) == page, "run `make docs`"
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert headings[1] == "Summary" and len(headings) == len(set(headings))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_commands_and_variables_exist() -> None:
    variables = {info.variable for info in option_infos().values()}
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"(?:^|`)polyfuse ([a-z-]+)", text, re.MULTILINE):
            if command not in COMMANDS:
                wrong.append(f"{page.name}: polyfuse {command}")
        for variable in re.findall(r"\bPOLYFUSE_[A-Z_]*[A-Z]", text):
            if variable not in variables and "__" not in variable and variable != "POLYFUSE_KERNEL":
                wrong.append(f"{page.name}: {variable}")
    assert not wrong, "\n".join(wrong)


NOT_SAID = (
    r"(?<!data )race[sd]?|racing|learnt|woven|weave|nought|panels|traits?|companions?|hoists?",
    r"the processor|stand-ins?|dummies|whole numbers|kept graphs?|gives way|takes? its place",
)
"""Words for which the field has others: see docs/glossary.md."""


def test_pages_use_the_words_of_the_field() -> None:
    wrong = []
    for page in PAGES:
        if page.name in ("parity.md", "architectures.md") or page.parent.name == "reference":
            continue  # names of tests, and texts of the code
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        found = re.findall(rf"\b(?:{'|'.join(NOT_SAID)})\b", text, re.IGNORECASE)
        wrong += [f"{page.relative_to(ROOT)}: {word}" for word in found]
    assert not wrong, "\n".join(wrong)


def test_the_layers_name_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers = page.partition("## Layers\n")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in (ROOT / "core" / "polyfuse").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"\w+", layers))


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        if name != "index.md" and not name.startswith("decisions/"):
            assert f"({name})" in index, f"docs/index.md does not mention {name}"


PROMISES = re.compile(r"(After|This|Look up|Short answers|What|Whole models|A tensor compiler)\b")
"""How the first sentence of a page begins, which says what its reader can do with it."""


def test_pages_begin_with_what_the_reader_can_do() -> None:
    wrong = []
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "backends").glob("*.md")]:
        text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        first = next(line for line in text.splitlines()[1:] if line.strip())
        if not PROMISES.match(first):
            wrong.append(f"{page.name}: {first}")
    assert not wrong, "\n".join(wrong)


def test_decisions_are_listed_and_open_with_the_decision() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        if page.name != "README.md":
            assert f"({page.name})" in index, f"docs/decisions/README.md does not list {page.name}"
            opening = page.read_text(encoding="utf-8").splitlines()[2]
            assert opening.startswith("**Decision.** "), f"{page.name} does not open with the decision"


def test_the_support_matrix_shows_the_shipped_backends() -> None:
    page = (ROOT / "docs" / "support-matrix.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    assert {"Versions", "cpp", "halide", "interpreter", "halide on cuda", "triton on cuda"} <= sections.keys()
    for name in ("cpp", "halide", "interpreter"):
        assert ", 0 failed." in sections[name] and "✗ |" not in sections[name]
