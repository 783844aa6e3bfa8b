"""Writes docs/support-matrix.md and its summary, docs/conformance.md: the conformance kit for the backends
named, or for all that work here. Examples take part where they are installed.

`NAME@DEVICE` runs a backend on a device, in several processes. Sections of backends that are not run stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.testing.conformance import run
from polyfuse.testing.matrix import Matrix

PAGE = Path(__file__).resolve().parent.parent / "docs" / "support-matrix.md"
HEAD = """# Support matrix

<!-- Made by tools/support_matrix.py, which runs the conformance kit. -->

What each backend passed of the conformance kit, which `polyfuse conformance NAME` runs: ✓ right, – refused
with a reason, ✗ wrong.

## Versions

| Python | torch | what was done |
|---|---|---|
| 3.11 | 2.13 | all tests run, on CPUs |
| 3.11 | 2.11 | 1500 quick tests run on a CPU: frontend, compiler, caches, kernels in C++, packages |
| 3.12 | 2.11 | benchmarks and the tests of GPUs run; quick tests, 51 of 7,900 failed: see below |
| 3.13 | 2.12 | 650 quick tests run on a CPU: frontend, compiler, models, caches |
| 3.13 | 2.11, 2.13 | checked, not run: `PYTHON=python3.13 make test` runs the tests |
| 3.14 | 2.11 to 2.13 | checked, not run |

Of the 51, some 20 were Triton's interpreter with a newer NumPy, and ten the machine's (no Halide, two OpenMP
libraries). Torch 2.11 itself differs where parameters are given other strides by `weight.data = other` after
a compilation: Dynamo takes them for unchanged, and the program reads the wrong elements. Setting
`torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags = False` has it look (half a microsecond for
each parameter and call); torch 2.13 looks by itself. Conversions of modules (`half()`, `to(...)`), which do
the same, are seen. It takes two functions that differ in a default number for one, with any backend, and
refuses to compile in a thread while another one traces.

Newer Pythons are checked from the sources, by `make types-newest` and `tests/house/test_newer_pythons.py`:
types against the standard library of 3.14, modules and names that it removed, annotations that are evaluated
late, `finally` blocks, start methods of processes. Its default start method, `forkserver`, is run on 3.11
(`tests/reliability/test_start_methods.py`). Extras whose packages have wheels for it: `triton`, `cutlass`,
`signing`, `demo`, `bench`, `docs`, `peers`. `halide` has none, and its extra installs nothing there.
"""
SUMMARY = PAGE.with_name("conformance.md")
SUMMARY_HEAD = """# Conformance

<!-- Made by tools/support_matrix.py, which runs the conformance kit. -->

After this page you know how many cells of the [conformance kit](writing-a-backend.md) each backend passed,
refused with a reason, and failed. The built-in backends and those of `examples` (minimal, numpy, sim) take
the same kit;
[the support matrix](support-matrix.md) shows every cell with its reason.

"""
PROCESSES = 8
"""That run the kit on a device side by side."""


def main(names: Sequence[str]) -> int:
    """Run the kit for each backend and write the page; the status is 1 when something failed."""
    matrices = [_matrix(name) for name in names or PluginManager(Settings.resolve()).order("cpu")]
    for matrix in matrices:
        print(matrix.summary())
    known = sections(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    merged = {**known, **{matrix.backend: matrix.markdown() for matrix in matrices}}
    PAGE.write_text("\n".join([HEAD, *merged.values()]), encoding="utf-8")
    SUMMARY.write_text(summary(merged), encoding="utf-8")
    return 0 if all(matrix.ok for matrix in matrices) else 1


def summary(found: Mapping[str, str]) -> str:
    """The page with a row for each backend: counts, and what of each group passed."""
    rows = [_row(title, text) for title, text in found.items()]
    groups = list(dict.fromkeys(group for _, _, counts in rows for group in counts))
    lines = ["| backend | passed | refused | failed |", "|---|--:|--:|--:|"]
    lines += [f"| {title} | {' | '.join(totals)} |" for title, totals, _ in rows]
    lines += [
        "",
        "## Passed, by group",
        "",
        f"| backend | {' | '.join(groups)} |",
        "|---" + "|--:" * len(groups) + "|",
    ]
    lines += [f"| {title} | {' | '.join(c.get(group, '–') for group in groups)} |" for title, _, c in rows]
    return SUMMARY_HEAD + "\n".join(lines) + "\n"


def _row(title: str, text: str) -> tuple[str, list[str], dict[str, str]]:
    """A section's title, its counts, and by group how many of how many cells passed."""
    totals = re.findall(r"(\d+) (?:passed|refused|failed)", text)[:3]
    counts: dict[str, str] = {}
    for part in re.split(r"^### ", text, flags=re.M)[1:]:
        group, _, body = part.partition("\n")
        if group != "Reasons":
            found = [
                sign for line in body.splitlines() for sign in line.split(" | ")[1:] if line.startswith("| ")
            ]
            signs = [sign.strip(" |") for sign in found]
            tried = sum(sign in ("✓", "–", "✗") for sign in signs)
            counts[group] = f"{signs.count('✓')} of {tried}" if tried else "none"
    return title, totals, counts


def _matrix(name: str) -> Matrix:
    backend, _, device = name.partition("@")
    if not device:
        return run(backend)
    return replace(run(backend, device=device, jobs=PROCESSES), backend=f"{backend} on {device}")


def sections(page: str) -> Mapping[str, str]:
    """The sections of a page's backends, by heading."""
    page = page[len(HEAD) :] if page.startswith(HEAD) else page
    parts = re.split(r"^## (.*)\n", page, flags=re.M)[1:]
    return {
        title: f"## {title}\n{text.rstrip()}\n" for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
