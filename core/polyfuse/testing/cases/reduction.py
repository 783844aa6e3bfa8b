"""Cases of reductions and scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from polyfuse.ir.expr import Expr, apply, const, index_value, load
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.ops import REDUCTIONS, SCANS
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import result_types
from polyfuse.symbolic import Index, IndexLike, axis, axis_size, evaluate, product, symbol
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse.testing.cases.case import Case, Tolerance
from polyfuse.testing.cases.loops import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    fresh,
    one_case,
    ordinary,
    reads,
    writes,
    zeros,
)

_FEWER: dict[str, tuple[DType, ...]] = {
    "prod": (F32, F64, I64),
    "min": (F32, F64, I32, I64, U8),
    "max": (F32, F64, I32, I64, U8),
    "xor_sum": (I32, I64),
    "argmin": (F32, F64, I64),
    "argmax": (F32, F64, I64),
}
"""Types of kinds of which not all that they take are tested."""
_PRECISE = ("sum", "prod")
"""Kinds that are quickly tested in `f64` as well, whose sums are not to be those of `f32`."""
_SHAPES = ("row", "column", "full", "mixed")


def reduction_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file; `quick` leaves out what differs only in type or size."""
    for kind in REDUCTIONS:
        types = _types(kind)
        if quick:
            types = types[:1] + ((F64,) if kind in _PRECISE else ())
        for dtype in types:
            for shape in _SHAPES if dtype is types[0] else _SHAPES[:2]:
                yield _reduction(kind, dtype, shape, (5, 37))
        if not quick:
            for size in (1, 7, 16, 17, 64, 1000):
                yield _reduction(kind, types[0], "row", (3, size), f"row of {size}")
            yield _reduction(kind, types[0], "column", (64, 33), "column of 64 by 33")
            yield _dynamic_reduction(kind, types[0])
    for kind, row in REDUCTIONS.items():
        if row.has_value_of_nothing:
            yield _reduction(kind, _types(kind)[0], "row", (3, 0), "row of 0")
    yield _several()
    yield _long_integers()
    for kind in ("min", "max", "argmin", "argmax", "sum", "welford"):
        yield _with_edges(kind)
    for kind in SCANS:
        types = (F32,) if quick or kind == "logsumexp" else (F32, F64, I64)
        for dtype in types:
            yield _scan(kind, dtype, "row", (4, 37))
            yield _scan(kind, dtype, "column", (37, 5))
        if not quick:
            yield _scan(kind, F32, "row", (3, 1), "row of 1")
            yield _scan(kind, F32, "row", (2, 300), "row of 300")


def _types(kind: str) -> tuple[DType, ...]:
    known = REDUCTIONS[kind].types
    return _FEWER.get(kind) or tuple(t for t in (F32, F64, I32, I64, U8, BOOL) if t in known)


def _space(shape: str, sizes: tuple[IndexLike, ...]) -> tuple[tuple[Index, ...], tuple[Index, ...], Index]:
    """Parallel axes, reduction axes, and the index into a contiguous input."""
    m, n = sizes
    if shape == "row":
        i, r = axis("i0", m), axis("r0", n)
        return (i,), (r,), _index(i * n + r)
    if shape == "column":
        i, r = axis("i0", n), axis("r0", m)
        return (i,), (r,), _index(r * n + i)
    if shape == "full":
        r, s = axis("r0", m), axis("r1", n)
        return (), (r, s), _index(r * n + s)
    # of [3, m, n] the first and the last are reduced
    r, i, s = axis("r0", 3), axis("i0", m), axis("r1", n)
    return (i,), (r, s), _index((r * m + i) * n + s)


def _index(index: IndexLike) -> Index:
    assert isinstance(index, Index)
    return index


def _position(raxes: tuple[Index, ...], sizes: tuple[IndexLike, ...]) -> Expr:
    """The linear index of a point among all that are reduced."""
    element: IndexLike = 0
    for r, size in zip(raxes, sizes, strict=True):
        element = element * size + r
    return index_value(element)


def _operands(count: int, value: Expr, element: Expr) -> tuple[Expr, ...]:
    return (value, element)[:count]


def _tolerance(kind: str, dtype: DType) -> Tolerance | None:
    if kind in ("min", "max", "argmin", "argmax"):
        return Tolerance(signed_zero=False)
    if kind == "prod" and dtype.is_float:
        return Tolerance(relative=1e-4, signed_zero=False)
    return Tolerance(absolute=1e-4, relative=1e-4, signed_zero=False) if dtype.is_float else None


def _values(kind: str, dtype: DType, count: int) -> Callable[[], Tensor]:
    if kind != "prod":
        return ordinary(dtype, count, 3)
    if dtype.is_float:
        return lambda: 1 + values.plain(dtype, count, 3) / 20
    return ordinary(dtype, count, 3)


def _reduction(kind: str, dtype: DType, shape: str, sizes: tuple[int, int], row: str = "") -> Case:
    axes, raxes, index = _space(shape, sizes)
    reduced = (3, sizes[1]) if shape == "mixed" else sizes if shape == "full" else (_extent(raxes),)
    count = sizes[0] * sizes[1] * (3 if shape == "mixed" else 1)
    builder, outputs = _carried(f"{kind}_{shape}", kind, dtype, axes, raxes, index, reduced, count)
    outer = evaluate(product(_extents(axes)), {})
    run = fresh(_values(kind, dtype, count), *(zeros(t, outer) for t in outputs))
    hints = _extents((*axes, *raxes))
    column = str(dtype)
    return one_case(
        builder, "reductions", f"{kind}, {row or shape}", column, (run,), _tolerance(kind, dtype), hints
    )


def _extent(raxes: tuple[Index, ...]) -> int:
    """The extent of the one reduction axis."""
    return _extents(raxes)[0]


def _extents(axes: tuple[Index, ...]) -> tuple[int, ...]:
    """Extents that are known."""
    return tuple(evaluate(axis_size(a), {}) for a in axes)


def _carried(
    name: str,
    kind: str,
    dtype: DType,
    axes: tuple[Index, ...],
    raxes: tuple[Index, ...],
    index: Index,
    reduced: tuple[IndexLike, ...],
    count: IndexLike,
    sizes: tuple[KernelArg, ...] = (),
) -> tuple[Builder, tuple[DType, ...]]:
    """A kernel of one reduction that stores all its results."""
    value = load("in0", index, dtype)
    operands = _operands(REDUCTIONS[kind].operands, value, _position(raxes, reduced))
    outputs = result_types("reduce", kind, tuple(e.dtype for e in operands))
    assert not isinstance(outputs, str)
    outer = product(axis_size(a) for a in axes)
    element: IndexLike = 0
    for a in axes:
        element = element * axis_size(a) + a
    args = (reads("in0", dtype, count), *(writes(f"out{k}", t, outer) for k, t in enumerate(outputs)), *sizes)
    builder = Builder(name, axes, raxes, args)
    targets = tuple(f"t{k}" for k in range(len(outputs)))
    builder.loop(Carry(targets, kind, operands))
    builder.once(*(Store(f"out{k}", element, result(f"t{k}", t)) for k, t in enumerate(outputs)))
    return builder, outputs


def _dynamic_reduction(kind: str, dtype: DType) -> Case:
    m, n = symbol("s0", 1), symbol("s1", 1)
    axes, raxes, index = _space("row", (m, n))
    sizes = (KernelArg("s0", "size", I64, hint=4), KernelArg("s1", "size", I64, hint=64))
    builder, outputs = _carried(f"{kind}_dynamic", kind, dtype, axes, raxes, index, (n,), m * n, sizes)
    runs = [
        fresh(_values(kind, dtype, a * b), *(zeros(t, a) for t in outputs), a, b)
        for a, b in ((1, 1), (3, 7), (2, 16), (5, 17), (4, 64), (1, 333))
    ]
    row = f"{kind}, dynamic"
    return one_case(builder, "reductions", row, str(dtype), runs, _tolerance(kind, dtype), (4, 64))


def _several() -> Case:
    """Three reductions of one pass, of which one is of an expression."""
    axes, raxes, index = _space("row", (6, 29))
    value = load("in0", index, F32)
    builder = Builder(
        "several", axes, raxes, (reads("in0", F32, 174), *(writes(f"out{k}", F32, 6) for k in range(3)))
    )
    builder.loop(
        Carry(("a",), "sum", (value,)),
        Carry(("b",), "max", (apply("abs", value),)),
        Carry(("c",), "sum", (apply("mul", value, value),)),
    )
    i = axes[0]
    builder.once(
        Store("out0", i, result("a", F32)),
        Store("out1", i, result("b", F32)),
        Store("out2", i, apply("sqrt", apply("add", result("c", F32), const(1.0, F32)))),
    )
    return one_case(builder, "reductions", "several in one pass", "f32", hints=(6, 29))


def _long_integers() -> Case:
    """A sum that needs all 64 bits."""
    m, n = 4, 37
    i, r = axis("i0", m), axis("r0", n)
    builder = Builder("sum_long", (i,), (r,), (reads("in0", I64, m * n), writes("out0", I64, m)))
    builder.loop(Carry(("s",), "sum", (load("in0", i * n + r, I64),)))
    builder.once(Store("out0", i, result("s", I64)))
    run = fresh(lambda: (torch.arange(m * n) << 31) + 5, zeros(I64, m))
    return one_case(builder, "reductions", "sum of large integers", "i64", (run,), hints=(m, n))


def _with_edges(kind: str) -> Case:
    """Rows that hold infinities, a NaN, both zeros, and ties."""
    rows = 8

    def made() -> Tensor:
        found = values.plain(F32, rows * 40, 9).reshape(rows, 40)
        found[0, 17] = torch.inf
        found[1, 5] = -torch.inf
        found[2, 33] = torch.nan
        found[2, 36] = torch.nan
        found[3, 8], found[3, 30] = 50.0, 50.0
        found[3, 9], found[3, 31] = -50.0, -50.0
        found[4, :] = -0.0
        found[5, 2], found[5, 3] = torch.inf, torch.nan
        found[6, 0], found[7, 39] = torch.inf, -torch.inf
        return found.reshape(-1)

    axes, raxes, index = _space("row", (rows, 40))
    builder, outputs = _carried(f"{kind}_edges", kind, F32, axes, raxes, index, (40,), rows * 40)
    run = fresh(made, *(zeros(t, rows) for t in outputs))
    row = f"{kind}, NaN, infinities and ties"
    return one_case(builder, "reductions", row, "f32", (run,), _tolerance(kind, F32), (rows, 40))


def _scan(kind: str, dtype: DType, shape: str, sizes: tuple[int, int], row: str = "") -> Case:
    axes, raxes, index = _space(shape, sizes)
    value = load("in0", index, dtype)
    operands = _operands(SCANS[kind].operands, value, _position(raxes, (_extent(raxes),)))
    outputs = result_types("scan", kind, tuple(e.dtype for e in operands))
    assert not isinstance(outputs, str)
    count = sizes[0] * sizes[1]
    args = (reads("in0", dtype, count), *(writes(f"out{k}", t, count) for k, t in enumerate(outputs)))
    builder = Builder(f"scan_{kind}_{shape}", axes, raxes, args)
    targets = tuple(f"t{k}" for k in range(len(outputs)))
    builder.loop(
        Carry(targets, kind, operands, scan=True),
        *(Store(f"out{k}", index, result(f"t{k}", t)) for k, t in enumerate(outputs)),
    )
    run = fresh(_values(kind, dtype, count), *(zeros(t, count) for t in outputs))
    hints = _extents((*axes, *raxes))
    tolerance = _tolerance(kind, dtype)
    return one_case(builder, "scans", f"{kind}, {row or shape}", str(dtype), (run,), tolerance, hints)
