"""Cases of kernels whose outputs may lie over inputs: what a tiling could read again after it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.kernel import KernelArg, RowBuffer
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, symbol
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse.testing.cases.case import EXACT, LOOSE, Case, Tolerance
from polyfuse.testing.cases.loops import (
    BF16,
    F16,
    F32,
    I64,
    fresh,
    one_case,
    ordinary,
    reads,
    softmax_of_rows,
    writes,
    zeros,
)

_GROUP = "an output over an input"
_HALF = Tolerance(absolute=0.05, relative=0.02, signed_zero=False)


def alias_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file."""
    for case in _cases(quick):
        yield replace(case, configured=True)


def _cases(quick: bool) -> Iterator[Case]:
    for dtype in (F32, BF16) if quick else (F32, BF16, F16, I64, DType.u8):
        yield _points(dtype, 1003)
        yield _planes(dtype)
    yield _two_results()
    yield _masked()
    yield _dynamic()
    for dtype, rows, length in ((F32, 5, 333), (F32, 2, 20000), (BF16, 70, 48)):
        yield _softmax(dtype, rows, length)
    for dtype in (BF16,) if quick else (F32, BF16, F16):
        yield _activation_and_norm(dtype, 70, 384, "fast")
    yield _activation_and_norm(F16, 40, 96, "eager")
    yield _activation_and_norm(F32, 2, 20000, "fast", across=False)
    yield _scan()
    yield _value_of_a_row()
    yield _value_between_loops()
    for dtype in (F32, BF16):
        yield _matmul(dtype)


def _case(
    builder: Builder, row: str, dtype: DType, hints: tuple[int, ...], tolerance: Tolerance | None = None
) -> Case:
    chosen = tolerance or (EXACT if not dtype.is_float else LOOSE if dtype is F32 else _HALF)
    return one_case(builder, _GROUP, row, str(dtype), tolerance=chosen, hints=hints)


def _more(value: Expr) -> Expr:
    """Something that differs from its operand, so that computing it twice is seen."""
    if value.dtype.is_float:
        wide = cast(value, value.dtype.compute)
        scaled = apply("mul", wide, const(1.5, wide.dtype))
        return cast(apply("add", scaled, const(1, wide.dtype)), value.dtype)
    return apply("add", value, const(3, value.dtype))


def _points(dtype: DType, count: int) -> Case:
    """The last vector of a row is not full."""
    i = axis("i0", count)
    builder = Builder("points", (i,), (), (reads("in0", dtype, count), writes("out0", dtype, count)))
    builder.once(Store("out0", i, _more(load("in0", i, dtype))))
    return _case(builder, "points", dtype, (count,))


def _planes(dtype: DType) -> Case:
    """Both lie transposed, beside an input that does not."""
    m, n = 45, 83
    i, j = axis("i0", m), axis("i1", n)
    args = (reads("in0", dtype, m * n), reads("in1", dtype, m * n), writes("out0", dtype, m * n))
    builder = Builder("planes", (i, j), (), args)
    element = j * m + i
    operands = (("in0", element), ("in1", i * n + j))
    value = apply("add", *(_wide(load(name, at, dtype)) for name, at in operands))
    builder.once(Store("out0", element, cast(_more(value), dtype)))
    return _case(builder, "transposed", dtype, (m, n))


def _wide(value: Expr) -> Expr:
    return cast(value, value.dtype.compute) if value.dtype.is_float else value


def _two_results() -> Case:
    count = 517
    i = axis("i0", count)
    args = (
        *(reads(f"in{k}", F32, count) for k in range(3)),
        *(writes(f"out{k}", F32, count) for k in range(2)),
    )
    builder = Builder("two_results", (i,), (), args)
    a, b, c = (load(f"in{k}", i, F32) for k in range(3))
    builder.once(
        Store("out0", i, apply("add", apply("mul", a, b), c)), Store("out1", i, apply("sub", b, _more(a)))
    )
    # the second result must not see the first one in place of `a`
    return _case(builder, "two results", F32, (count,))


def _masked() -> Case:
    count = 333
    i = axis("i0", count)
    builder = Builder("masked", (i,), (), (reads("in0", F32, count), writes("out0", F32, count)))
    mask = apply("lt", index_value(i), const(200, I64))
    value = load("in0", i, F32, mask=mask, other=const(7.0, F32))
    builder.once(Store("out0", i, _more(value)))
    return _case(builder, "a condition on what is read", F32, (count,))


def _dynamic() -> Case:
    n = symbol("s0")
    i = axis("i0", n)
    args = (reads("in0", F32, n), writes("out0", F32, n), KernelArg("s0", "size", I64, hint=64))
    builder = Builder("dynamic", (i,), (), args)
    builder.once(Store("out0", i, _more(load("in0", i, F32))))
    runs = [fresh(ordinary(F32, count), zeros(F32, count), count) for count in (0, 1, 7, 65, 1025)]
    return one_case(builder, _GROUP, "a number of points that changes", "f32", runs, LOOSE, (64,))


def _softmax(dtype: DType, m: int, n: int) -> Case:
    return _case(softmax_of_rows("softmax", dtype, m, n), f"softmax, row of {n}", dtype, (m, n))


def _activation_and_norm(dtype: DType, m: int, n: int, numerics: str, across: bool = True) -> Case:
    """An activation that is a result, and its normalisation, which needs all of its row again.

    `across`: what is read lies across the rows.
    """
    i, r = axis("i0", m), axis("r0", n)
    element: IndexLike = r * m + i if across else i * n + r
    args = (
        reads("in0", dtype, m * n),
        reads("in1", dtype, m * n),
        writes("out0", dtype, m * n),
        writes("out1", dtype, m * n),
    )
    builder = Builder("activation_and_norm", (i,), (r,), args, (RowBuffer("row", F32, n),), numerics=numerics)
    x = cast(load("in0", element, dtype), F32)
    gelu = apply("mul", x, apply("add", apply("erf", apply("mul", x, const(0.7071, F32))), const(1.0, F32)))
    value = apply("add", gelu, cast(load("in1", i * n + r, dtype), F32))
    builder.loop(Store("row", r, value), Carry(("mean", "m2", "count"), "welford", (value,)))
    again = load("row", r, F32)
    builder.loop(Store("out0", element, cast(again, dtype)))
    variance = apply("div", result("m2", F32), result("count", F32))
    scale = apply("rsqrt", apply("add", variance, const(1e-5, F32)))
    centred = apply("mul", apply("sub", again, result("mean", F32)), scale)
    builder.loop(Store("out1", i * n + r, cast(centred, dtype)))
    return _case(builder, f"activation and its norm, {numerics}, row of {n}", dtype, (m, n))


def _scan() -> Case:
    m, n = 3, 700
    i, r = axis("i0", m), axis("r0", n)
    builder = Builder("scan", (i,), (r,), (reads("in0", F32, m * n), writes("out0", F32, m * n)))
    value = apply("mul", load("in0", i * n + r, F32), const(0.5, F32))
    builder.loop(
        Carry(("c",), "sum", (value,), scan=True),
        Store("out0", i * n + r, apply("add", result("c", F32), value)),
    )
    return _case(builder, "scan", F32, (m, n), Tolerance(absolute=1e-3, relative=1e-4, signed_zero=False))


def _value_of_a_row() -> Case:
    """One value of each row is written over, while all of the row needs it as it was."""
    m, n = 37, 130
    i, r = axis("i0", m), axis("r0", n)
    args = (
        reads("in0", F32, m),
        reads("in1", F32, m * n),
        writes("out0", F32, m),
        writes("out1", F32, m * n),
    )
    builder = Builder("value_of_a_row", (i,), (r,), args)
    value = load("in0", i, F32)
    builder.loop(Carry(("s",), "sum", (apply("mul", value, load("in1", i * n + r, F32)),)))
    builder.once(Store("out0", i, apply("add", value, result("s", F32))))
    found = apply("add", load("in1", i * n + r, F32), result("s", F32))
    builder.loop(Store("out1", i * n + r, found))
    return _case(builder, "one value of a row", F32, (m, n), Tolerance(absolute=1e-3, relative=1e-4))


def _value_between_loops() -> Case:
    """A value that stands outside of long loops is written over between them."""
    m, n = 2, 70000
    i, r = axis("i0", m), axis("r0", n)
    args = (reads("in0", F32, m), reads("in1", F32, m * n), writes("out0", F32, m), writes("out1", F32, m))
    builder = Builder("value_between_loops", (i,), (r,), args)
    value = load("in0", i, F32)
    scale = apply("mul", value, const(0.5, F32))
    builder.once(Store("out0", i, apply("add", scale, const(1.0, F32))))
    each = apply("mul", load("in1", i * n + r, F32), const(1e-3, F32))
    builder.loop(Carry(("s",), "sum", (apply("mul", each, scale),)))
    builder.loop(Carry(("t",), "sum", (apply("mul", apply("sub", each, result("s", F32)), scale),)))
    builder.once(Store("out1", i, result("t", F32)))
    return _case(builder, "a value between loops", F32, (m, n), Tolerance(absolute=1e-1, relative=1e-3))


def _matmul(dtype: DType) -> Case:
    """What is added to the results of a matmul is written over."""
    m, n, k = 80, 96, 64
    i, j, r = axis("i0", m), axis("i1", n), axis("r0", k)
    args = (
        reads("in0", dtype, m * k, True),
        reads("in1", dtype, n * k, True),
        reads("in2", dtype, m * n, True),
        KernelArg("out0", "out", dtype, m * n, True),
    )
    builder = Builder("matmul", (i, j), (r,), args)
    builder.loop(Carry(("total",), "dot", (load("in0", i * k + r, dtype), load("in1", j * k + r, dtype))))
    element = i * n + j
    added = apply("add", result("total", F32), cast(load("in2", element, dtype), F32))
    builder.once(Store("out0", element, cast(apply("maximum", added, const(-1.0, F32)), dtype)))
    tolerance = Tolerance(absolute=0.2 if dtype is BF16 else 1e-3, relative=0.02, signed_zero=False)
    return _case(builder, "added to a matmul", dtype, (m, n, k), tolerance)
