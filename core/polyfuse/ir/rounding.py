"""Values that a kernel may compute less exactly, since only numbers of 16 bits are made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Cast, Compute, Statement, Store
from polyfuse.ir.types import DType

COARSE: Mapping[str, float] = MappingProxyType({"erf": 2.0**-13})
"""Operations with such a form, and how far its result may be off: this part of it, and of what it lacks
of ±1."""

QUICK: Mapping[str, float] = MappingProxyType({"exp": 5e-6, "sigmoid": 5e-6, "tanh": 5e-6})
"""Operations with a form for kernels that store 16 bits alone, and how far it may be off relatively."""

_PASSING = frozenset(("add", "sub", "mul", "neg"))
"""Operations whose results are as exact as their operands, or as those of eager mode, which rounds these."""


def coarse_values(kernel: Kernel) -> frozenset[str]:
    """Results of operations in `COARSE` that a kernel with fast numerics uses for numbers of bf16 alone,
    without a comparison or a loop in between."""
    if kernel.numerics != "fast":
        return frozenset()
    statements = _statements(kernel)
    exact = _exact(statements)
    return frozenset(
        stmt.target
        for stmt in statements
        if isinstance(stmt, Compute) and stmt.op in COARSE and stmt.target not in exact
    )


def stores_halves(kernel: Kernel) -> bool:
    """Whether all floating-point numbers that a kernel stores in its arguments have 16 bits or fewer."""
    types = {a.name: a.dtype for a in kernel.args if a.kind != "size"}
    stored = {types[s.buffer] for s in _statements(kernel) if isinstance(s, Store) and s.buffer in types}
    return any(kind.is_float for kind in stored) and stored.isdisjoint((DType.f32, DType.f64))


def _statements(kernel: Kernel) -> list[Statement]:
    return [stmt for section in kernel.sections for stmt in section.body]


def _exact(statements: Iterable[Statement]) -> set[str]:
    """Values of which something else is made as well."""
    exact: set[str] = set()
    for stmt in reversed(list(statements)):
        narrows = isinstance(stmt, Cast) and stmt.dtype is DType.bf16 and not stmt.bitwise
        passes = isinstance(stmt, Compute) and stmt.op in _PASSING and stmt.target not in exact
        if not (narrows or passes):
            exact.update(stmt.args)
    return exact
