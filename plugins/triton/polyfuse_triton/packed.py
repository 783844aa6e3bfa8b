"""Extremes of two pairs of 16-bit numbers in one instruction, which assemblers get wrong.

LLVM joins the extremes of two indices below 65536 into one instruction of PTX (`max.u16x2`). A kernel that
had them failed on an H200 with the assemblers of CUDA 12.8, 12.9 and 13.0, and was right where they were
optimised away or not optimised at all (`docs/decisions/packed-extremes.md`).
"""

from __future__ import annotations

import re

__all__ = ["taken_apart"]

_PACKED = re.compile(r"^(\s*)(min|max)\.([us])16x2\s+(%r\d+), (%r\d+), (%r\d+);", re.MULTILINE)


def taken_apart(ptx: str) -> str:
    """The same program with each such instruction as two."""
    return _PACKED.sub(_one_by_one, ptx)


def _one_by_one(found: re.Match[str]) -> str:
    indent, name, sign, to, left, right = found.groups()
    lines = [
        "{ .reg .b16 a<2>, b<2>;",
        f"mov.b32 {{a0, a1}}, {left};",
        f"mov.b32 {{b0, b1}}, {right};",
        f"{name}.{sign}16 a0, a0, b0;",
        f"{name}.{sign}16 a1, a1, b1;",
        f"mov.b32 {to}, {{a0, a1}}; }}",
    ]
    return "\n".join(indent + line for line in lines)
