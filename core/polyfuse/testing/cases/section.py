"""Cases of kernels with several sections, with row buffers, and of random numbers: what fusion makes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.ops import RANDOM
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, symbol
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse.testing.cases.case import EXACT, Case, Tolerance
from polyfuse.testing.cases.loops import (
    BF16,
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

_GROUP = "fused kernels"


def section_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file."""
    for row_length in (17, 64) if quick else (1, 7, 16, 17, 64, 200):
        yield _softmax(row_length)
    yield _softmax_three_passes()
    yield _softmax_of_large()
    yield _reads_after_it_stored()
    yield _layer_norm(F32)
    yield _layer_norm(BF16)
    yield _dynamic_softmax()
    yield _column_mean_subtracted()
    yield _reduction_of_reduction()
    yield _full_then_pointwise()
    yield _pointwise_before_and_after()
    yield _many_outputs()
    yield _scan_with_epilogue()
    yield _eager_rounding()
    for kind, dtype in RANDOM.items():
        yield _random(kind, DType[dtype])


def _softmax(n: int) -> Case:
    """One pass over memory: the row is stored in a row buffer."""
    m = 5
    builder = softmax_of_rows("softmax_local", F32, m, n)
    return one_case(builder, _GROUP, f"softmax with a row buffer, row of {n}", "f32", hints=(m, n))


def _softmax_in_passes(name: str, m: int, n: int) -> Builder:
    """Maximum, then sum, then quotient, each reading memory again."""
    i, r = axis("i0", m), axis("r0", n)
    builder = Builder(name, (i,), (r,), (reads("in0", F32, m * n), writes("out0", F32, m * n)))
    value = load("in0", i * n + r, F32)
    shifted = apply("exp", apply("sub", value, result("m", F32)))
    builder.loop(Carry(("m",), "max", (value,)))
    builder.loop(Carry(("s",), "sum", (shifted,)))
    return builder.loop(Store("out0", i * n + r, apply("div", shifted, result("s", F32))))


def _softmax_three_passes() -> Case:
    m, n = 6, 45
    builder = _softmax_in_passes("softmax_passes", m, n)
    return one_case(builder, _GROUP, "softmax in three passes", "f32", hints=(m, n))


def _softmax_of_large() -> Case:
    """Only what is left after the maximum was subtracted has exponentials."""
    m, n = 6, 45
    run = fresh(lambda: values.plain(F32, m * n) * 100, zeros(F32, m * n))
    builder = _softmax_in_passes("softmax_large", m, n)
    return one_case(builder, _GROUP, "softmax of large numbers", "f32", (run,), hints=(m, n))


def _reads_after_it_stored() -> Case:
    """A result as long as the input is written before the input is read again."""
    m, n = 6, 45
    i, r = axis("i0", m), axis("r0", n)
    args = (reads("in0", F32, m * n), writes("out0", F32, m * n), writes("out1", F32, m * n))
    builder = Builder("reads_later", (i,), (r,), args)
    value = load("in0", i * n + r, F32)
    builder.loop(Carry(("m",), "max", (value,)), Store("out0", i * n + r, apply("mul", value, value)))
    builder.loop(Store("out1", i * n + r, apply("sub", value, result("m", F32))))
    return one_case(builder, _GROUP, "read again after a result was stored", "f32", hints=(m, n))


def _layer_norm(dtype: DType) -> Case:
    m, n = 4, 50
    i, r = axis("i0", m), axis("r0", n)
    args = (
        reads("in0", dtype, m * n),
        reads("in1", dtype, n),
        reads("in2", dtype, n),
        writes("out0", dtype, m * n),
        writes("out1", F32, m),
    )
    builder = Builder("layer_norm", (i,), (r,), args)
    value = cast(load("in0", i * n + r, dtype), F32)
    builder.loop(Carry(("mean", "m2", "count"), "welford", (value,)))
    variance = apply("div", result("m2", F32), result("count", F32))
    scale = apply("rsqrt", apply("add", variance, const(1e-5, F32)))
    builder.once(Store("out1", i, scale))
    centred = apply("mul", apply("sub", value, result("mean", F32)), scale)
    weight, bias = (cast(load(name, r, dtype), F32) for name in ("in1", "in2"))
    found = apply("add", apply("mul", centred, weight), bias)
    builder.loop(Store("out0", i * n + r, cast(found, dtype)))
    tolerance = Tolerance(absolute=0.05, relative=0.01, signed_zero=False) if dtype is BF16 else None
    return one_case(builder, _GROUP, "layer norm", str(dtype), tolerance=tolerance, hints=(m, n))


def _dynamic_softmax() -> Case:
    sizes = (KernelArg("s0", "size", I64, hint=8), KernelArg("s1", "size", I64, hint=64))
    builder = softmax_of_rows("softmax_dynamic", F32, symbol("s0"), symbol("s1", 1), *sizes)
    runs = [
        fresh(ordinary(F32, a * b), zeros(F32, a * b), a, b)
        for a, b in ((0, 4), (1, 1), (3, 7), (2, 65), (9, 16))
    ]
    return one_case(builder, _GROUP, "softmax, dynamic", "f32", runs, hints=(8, 64))


def _column_mean_subtracted() -> Case:
    m, n = 30, 21
    i, r = axis("i0", n), axis("r0", m)
    builder = Builder("column_mean", (i,), (r,), (reads("in0", F32, m * n), writes("out0", F32, m * n)))
    value = load("in0", r * n + i, F32)
    builder.loop(Carry(("s",), "sum", (value,)))
    mean = apply("mul", result("s", F32), const(1.0 / m, F32))
    builder.loop(Store("out0", r * n + i, apply("sub", value, mean)))
    return one_case(builder, _GROUP, "column mean subtracted", "f32", hints=(n, m))


def _reduction_of_reduction() -> Case:
    """The second reduction needs the first; one value is computed between them."""
    m, n = 7, 40
    i, r = axis("i0", m), axis("r0", n)
    builder = Builder("two_reductions", (i,), (r,), (reads("in0", F32, m * n), writes("out0", F32, m)))
    value = load("in0", i * n + r, F32)
    builder.loop(Carry(("s",), "sum", (value,)))
    builder.once(Store("out0", i, apply("mul", result("s", F32), const(1.0 / n, F32))))
    away = apply("sub", value, load("out0", i, F32))
    builder.loop(Carry(("v",), "sum", (apply("mul", away, away),)))
    builder.once(Store("out0", i, apply("sqrt", result("v", F32))))
    return one_case(builder, _GROUP, "deviation around the mean", "f32", hints=(m, n))


def _full_then_pointwise() -> Case:
    """No parallel axis at all."""
    r = axis("r0", 333)
    builder = Builder("full_max", (), (r,), (reads("in0", F32, 333), writes("out0", F32, 333)))
    value = load("in0", r, F32)
    builder.loop(Carry(("m",), "max", (apply("abs", value),)))
    builder.loop(Store("out0", r, apply("div", value, result("m", F32))))
    return one_case(builder, _GROUP, "divided by the largest of all", "f32", hints=(333,))


def _pointwise_before_and_after() -> Case:
    """Values of an unlooped section are used inside and after a loop."""
    m, n = 8, 33
    i, r = axis("i0", m), axis("r0", n)
    args = (reads("in0", F32, m * n), reads("in1", F32, m), writes("out0", F32, m), writes("out1", F32, m))
    builder = Builder("before_and_after", (i,), (r,), args)
    scale = apply("exp", apply("neg", apply("abs", load("in1", i, F32))))
    builder.once(Store("out0", i, scale))
    value = apply("mul", load("in0", i * n + r, F32), scale)
    builder.loop(Carry(("s",), "sum", (value,)), Carry(("k",), "max", (value,)))
    builder.once(Store("out1", i, apply("add", result("s", F32), result("k", F32))))
    return one_case(builder, _GROUP, "values before and after a loop", "f32", hints=(m, n))


def _many_outputs() -> Case:
    count = 70
    i = axis("i0", count)
    types = (F32, DType.f64, I64, DType.i32, DType.u8, DType.bool, BF16, DType.i8)
    args = (reads("in0", F32, count), *(writes(f"out{k}", t, count) for k, t in enumerate(types)))
    builder = Builder("many_outputs", (i,), (), args)
    value = load("in0", i, F32)
    clear = apply("maximum", value, const(0.0, F32))
    stores: list[Store] = []
    for k, dtype in enumerate(types):
        found: Expr = apply("gt", value, const(0.5, F32)) if dtype is DType.bool else cast(clear, dtype)
        stores.append(Store(f"out{k}", i, found))
    builder.once(*stores)
    return one_case(builder, _GROUP, "outputs of eight types", "", tolerance=EXACT, hints=(count,))


def _scan_with_epilogue() -> Case:
    m, n = 3, 28
    i, r = axis("i0", m), axis("r0", n)
    builder = Builder("scan_epilogue", (i,), (r,), (reads("in0", F32, m * n), writes("out0", F32, m * n)))
    value = apply("mul", load("in0", i * n + r, F32), const(0.5, F32))
    builder.loop(
        Carry(("c",), "sum", (value,), scan=True),
        Store("out0", i * n + r, apply("add", result("c", F32), value)),
    )
    return one_case(builder, _GROUP, "scan inside an expression", "f32", hints=(m, n))


def _eager_rounding() -> Case:
    """`numerics="eager"`: products and sums round one by one, and a cast down and up stays."""
    count = 200
    i = axis("i0", count)
    args = (
        reads("in0", F32, count),
        reads("in1", F32, count),
        reads("in2", F32, count),
        writes("out0", F32, count),
        writes("out1", F32, count),
    )
    builder = Builder("eager_rounding", (i,), (), args, numerics="eager")
    a, b, c = (load(f"in{k}", i, F32) for k in range(3))
    builder.once(
        Store("out0", i, apply("add", apply("mul", a, b), c)),
        Store("out1", i, apply("add", cast(cast(a, BF16), F32), b)),
    )
    return one_case(builder, _GROUP, "every rounding of eager mode", "f32", tolerance=EXACT, hints=(count,))


def _random(kind: str, dtype: DType) -> Case:
    count = 100
    i = axis("i0", count)
    builder = Builder("random", (i,), (), (reads("in0", I64, 1), writes("out0", dtype, count)))
    drawn = Expr("rand", (load("in0", 0, I64), index_value(i + 7)), dtype, kind)
    builder.once(Store("out0", i, drawn))

    def seed() -> torch.Tensor:
        return torch.tensor([0x1234567890ABCDEF])

    tolerance = Tolerance(absolute=1e-5, signed_zero=False) if kind == "normal" else EXACT
    run = fresh(seed, zeros(dtype, count))
    return one_case(builder, "random numbers", kind, str(dtype), (run,), tolerance, (count,))
