"""Cases large enough to be shared by threads, tiled and split."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.ops import REDUCTIONS, SCANS
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import result_types
from polyfuse.symbolic import Index, IndexLike, axis
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse.testing.cases.case import EXACT, Case, Tolerance
from polyfuse.testing.cases.loops import (
    BF16,
    F32,
    I64,
    U8,
    fresh,
    one_case,
    ordinary,
    reads,
    softmax_of_rows,
    writes,
    zeros,
)

_GROUP = "large"
_SUMS = Tolerance(absolute=2e-2, relative=1e-4, signed_zero=False)


def large_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file."""
    for dtype in (F32,) if quick else (F32, BF16, U8):
        yield _pointwise(dtype)
        yield _transposed(dtype)
    for kind in ("sum", "argmax") if quick else ("sum", "max", "argmax", "welford", "online_softmax"):
        yield _reduction(kind, "long row", 3, 70_001)
        yield _reduction(kind, "tall column", 2003, 130)
        yield _reduction(kind, "all", 1, 300_007)
    for kind in ("sum",) if quick else SCANS:
        yield _scan(kind, 2, 20_001)
        yield _scan(kind, 300, 257)
    yield _softmax(40, 5000)
    yield _scatter()


def _pointwise(dtype: DType) -> Case:
    count = 200_003
    i = axis("i0", count)
    builder = Builder("large_pointwise", (i,), (), (reads("in0", dtype, count), writes("out0", dtype, count)))
    builder.once(Store("out0", i, _bent(load("in0", i, dtype))))
    return one_case(builder, _GROUP, "pointwise", str(dtype), tolerance=EXACT, hints=(count,))


def _transposed(dtype: DType) -> Case:
    m, n = 301, 467
    i, j = axis("i0", m), axis("i1", n)
    args = (reads("in0", dtype, m * n), reads("in1", dtype, m * n), writes("out0", dtype, m * n))
    builder = Builder("large_transposed", (i, j), (), args)
    first, second = load("in0", i * n + j, dtype), load("in1", j * m + i, dtype)
    chosen = apply("where", apply("gt", _wide(first), _wide(second)), _wide(first), _wide(second))
    builder.once(Store("out0", i * n + j, cast(chosen, dtype)))
    return one_case(builder, _GROUP, "transposed", str(dtype), tolerance=EXACT, hints=(m, n))


def _wide(value: Expr) -> Expr:
    return cast(value, value.dtype.compute)


def _bent(value: Expr) -> Expr:
    wide = _wide(value)
    two = const(2, wide.dtype)
    return cast(apply("add", apply("mul", wide, two), two), value.dtype)


def _reduction(kind: str, row: str, m: int, n: int) -> Case:
    if row == "tall column":
        axes: tuple[Index, ...] = (axis("i0", n),)
        raxes = (axis("r0", m),)
        index: IndexLike = raxes[0] * n + axes[0]
        outer = n
    else:
        axes = (axis("i0", m),) if m > 1 else ()
        raxes = (axis("r0", n),)
        index = (axes[0] * n if axes else 0) + raxes[0]
        outer = m
    value = load("in0", index, F32)
    operands = (value, index_value(raxes[0]))[: REDUCTIONS[kind].operands]
    outputs = result_types("reduce", kind, tuple(e.dtype for e in operands))
    assert not isinstance(outputs, str)
    results = range(len(outputs))
    args = (reads("in0", F32, m * n), *(writes(f"out{k}", outputs[k], outer) for k in results))
    builder = Builder(f"large_{kind}", axes, raxes, args)
    builder.loop(Carry(tuple(f"t{k}" for k in results), kind, operands))
    element: IndexLike = axes[0] if axes else 0
    builder.once(*(Store(f"out{k}", element, result(f"t{k}", outputs[k])) for k in results))
    run = fresh(ordinary(F32, m * n, 3), *(zeros(t, outer) for t in outputs))
    tolerance = EXACT if kind in ("max", "argmax") else _SUMS
    hints = (m, n) if axes and row != "tall column" else (n, m) if axes else (n,)
    return one_case(builder, _GROUP, f"{kind}, {row}", "f32", (run,), tolerance, hints)


def _scan(kind: str, m: int, n: int) -> Case:
    i, r = axis("i0", m), axis("r0", n)
    index: Index = axis("i0", m) * n + r  # type: ignore[assignment]
    value = apply("mul", load("in0", index, F32), const(0.01, F32))
    if kind == "prod":
        value = apply("add", apply("mul", value, const(0.01, F32)), const(1.0, F32))
    operands = (value, index_value(r))[: SCANS[kind].operands]
    outputs = result_types("scan", kind, tuple(e.dtype for e in operands))
    assert not isinstance(outputs, str)
    results = range(len(outputs))
    args = (reads("in0", F32, m * n), *(writes(f"out{k}", outputs[k], m * n) for k in results))
    builder = Builder(f"large_scan_{kind}", (i,), (r,), args)
    builder.loop(
        Carry(tuple(f"t{k}" for k in results), kind, operands, scan=True),
        *(Store(f"out{k}", index, result(f"t{k}", outputs[k])) for k in results),
    )
    run = fresh(ordinary(F32, m * n, 3), *(zeros(t, m * n) for t in outputs))
    tolerance = EXACT if kind in ("min", "max") else _SUMS
    return one_case(builder, _GROUP, f"scan {kind}, {m} by {n}", "f32", (run,), tolerance, (m, n))


def _softmax(m: int, n: int) -> Case:
    builder = softmax_of_rows("large_softmax", F32, m, n)
    return one_case(builder, _GROUP, "softmax with a row buffer", "f32", hints=(m, n))


def _scatter() -> Case:
    count, buckets = 100_003, 97
    i = axis("i0", count)
    args = (reads("in0", F32, count), reads("in1", I64, count), writes("io0", F32, buckets, "inout"))
    builder = Builder("large_scatter", (i,), (), args)
    number = load("in1", i, I64)
    builder.once(Store("io0", axis("@0", buckets), load("in0", i, F32), "add", (number,)))

    def numbers() -> Tensor:
        return torch.arange(count) * 31 % buckets

    run = fresh(ordinary(F32, count), numbers, lambda: values.plain(F32, buckets, 5))
    return one_case(builder, _GROUP, "scatter, colliding", "f32", (run,), _SUMS, (count,))
