"""Sums of two pairs of 16-bit integers in one instruction, which assemblers get wrong.

LLVM joins the sums of two indices below 65536 into one instruction of PTX. Where only one half of a constant
summand is used, the assemblers of CUDA 12.8 to 13.0 drop that half
(`docs/decisions/triton-packed-int16-add.md`).
"""

from __future__ import annotations

import re

__all__ = ["taken_apart"]

_PACKED = re.compile(r"^(\s*)add\.([us])16x2\s+(%r\d+), (%r\d+), (%r\d+|-?\d+);", re.MULTILINE)


def taken_apart(ptx: str) -> str:
    """The same program with each such instruction as two."""
    return _PACKED.sub(_one_by_one, ptx)


def _one_by_one(found: re.Match[str]) -> str:
    indent, sign, to, left, right = found.groups()
    lines = [
        "{ .reg .b16 a<2>, b<2>; .reg .b32 c;",
        f"mov.b32 {{a0, a1}}, {left};",
        f"mov.b32 c, {right};",
        "mov.b32 {b0, b1}, c;",
        f"add.{sign}16 a0, a0, b0;",
        f"add.{sign}16 a1, a1, b1;",
        f"mov.b32 {to}, {{a0, a1}}; }}",
    ]
    return "\n".join(indent + line for line in lines)
