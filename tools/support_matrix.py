"""Writes docs/support-matrix.md: the conformance kit for the backends named, or for all that work here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.testing.conformance import run

PAGE = Path(__file__).resolve().parent.parent / "docs" / "support-matrix.md"
HEAD = """# Support matrix

<!-- Made by tools/support_matrix.py, which runs the conformance kit. -->

What each backend passed of the conformance kit, which `polyfuse conformance NAME` runs: ✓ right, – refused
with a reason, ✗ wrong.
"""


def main(names: Sequence[str]) -> int:
    """Run the kit for each backend and write the page; the status is 1 when something failed."""
    matrices = [run(name) for name in names or PluginManager(Settings.resolve()).order("cpu")]
    for matrix in matrices:
        print(matrix.summary())
    PAGE.write_text("\n".join([HEAD, *(m.markdown() for m in matrices)]), encoding="utf-8")
    return 0 if all(matrix.ok for matrix in matrices) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
