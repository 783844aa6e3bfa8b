"""What Halide gets wrong on devices, though it compiles."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Scan, is_check

_WITH_POSITIONS = ("min", "max")
"""Scans that keep the position of what they found: measured on an H200, their positions were not stored."""


def device_fault(kernel: Kernel) -> str:
    """Why a kernel is left to another backend on a device, or an empty text."""
    if kernel.numerics == "eager":
        # PTX of Halide's multiplies and adds in one step, with one rounding
        return "Halide rounds otherwise than eager mode on devices"
    for section in kernel.sections:
        for stmt in section.body:
            if is_check(stmt):
                return "Halide's kernels cannot stop a device where an index is out of range"
            if isinstance(stmt, Scan) and stmt.kind in _WITH_POSITIONS:
                return f"Halide's scans {stmt.kind} lose positions on devices"
    return ""
