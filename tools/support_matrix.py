"""Writes docs/support-matrix.md: the conformance kit for the backends named, or for all that work here.

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
"""
PROCESSES = 8
"""That run the kit on a device side by side."""


def main(names: Sequence[str]) -> int:
    """Run the kit for each backend and write the page; the status is 1 when something failed."""
    matrices = [_matrix(name) for name in names or PluginManager(Settings.resolve()).order("cpu")]
    for matrix in matrices:
        print(matrix.summary())
    known = _sections(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    sections = {**known, **{matrix.backend: matrix.markdown() for matrix in matrices}}
    PAGE.write_text("\n".join([HEAD, *sections.values()]), encoding="utf-8")
    return 0 if all(matrix.ok for matrix in matrices) else 1


def _matrix(name: str) -> Matrix:
    backend, _, device = name.partition("@")
    if not device:
        return run(backend)
    return replace(run(backend, device=device, jobs=PROCESSES), backend=f"{backend} on {device}")


def _sections(page: str) -> Mapping[str, str]:
    """The sections of a page, by heading."""
    parts = re.split(r"^## (.*)\n", page, flags=re.M)[1:]
    return {
        title: f"## {title}\n{text.rstrip()}\n" for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
