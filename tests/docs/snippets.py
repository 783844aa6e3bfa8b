"""The Python blocks of a page, as one program with the page's own line numbers.

A block runs unless the comment ``<!-- not run: why -->`` stands before it, for what needs a GPU, minutes or
files that the reader has. Blocks that code puts into a page (`docs.blocks`) are tested where they come from.
"""

from __future__ import annotations

import re
from pathlib import Path

FENCE = re.compile(r"^```(\w*)$")
NOT_RUN = re.compile(r"^<!-- not run: .+ -->$")


def program(page: Path) -> str:
    """All blocks that run, each at its line; every other line is empty."""
    lines = page.read_text(encoding="utf-8").splitlines()
    shown = [""] * len(lines)
    running, before, made = False, "", False
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence and not running:
            running = True
            taken = fence.group(1) == "python" and not made and not NOT_RUN.match(before)
        elif fence:
            running = False
        elif running and taken:
            shown[number] = line
        elif not running:
            made = (made or line.startswith("<!-- block:")) and line != "<!-- end of block -->"
            before = line or before
    return "\n".join(shown) + "\n" if any(shown) else ""
