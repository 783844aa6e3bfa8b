"""Kernels that start while the one before them in their stream ends, and wait themselves for what it writes.

A GPU takes about a microsecond from the end of a kernel to the first instruction of the next one. Since
architecture 9.0 a kernel may be launched so that its blocks are already there when the other one ends
(programmatic dependent launch), if it touches no memory before it has waited. It cannot end before it has
waited, so for kernels after it nothing changes (`docs/decisions/programmatic-dependent-launch.md`).
"""

from __future__ import annotations

import re

OLDEST = 90
"""The oldest architecture that can."""
_ENTRY = re.compile(r"^\.visible \.entry [^{]*\{\n", re.MULTILINE)
_BEFORE_CODE = re.compile(r"\s*(\.|//|\$?\w+:|$)")
_WAIT = "\tgriddepcontrol.wait;\n"


def waiting(ptx: str) -> str:
    """The same program, whose kernel, if it has one, begins by waiting for the one before it."""
    entry = _ENTRY.search(ptx)
    if entry is None:
        return ptx
    position = entry.end()
    for line in ptx[position:].splitlines(keepends=True):
        if not _BEFORE_CODE.match(line):
            break
        position += len(line)
    return ptx[:position] + _WAIT + ptx[position:]


def is_waiting(ptx: str) -> bool:
    """Whether that was done to a program."""
    return _WAIT in ptx
