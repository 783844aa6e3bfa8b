"""Which operators are there as soon as torch is."""

from __future__ import annotations

_OPERATORS = frozenset(
    {"aten", "prim", "prims", "mkl", "mkldnn", "onednn", "quantized", "_quantized", "_c10d_functional"}
)

_FUNCTIONS = frozenset({"torch", "operator", "math"})
"""Before the names of plain functions."""


def comes_with_torch(name: str) -> bool:
    """Whether an operator or function of this name needs no import but that of torch."""
    return name.partition(".")[0] in _OPERATORS | _FUNCTIONS
