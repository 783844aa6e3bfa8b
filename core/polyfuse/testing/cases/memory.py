"""Cases of memory: layouts, sizes, gathers, masks, and stores that combine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.ops import CHECK_MODE, STORE_MODES, can_store
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike, axis, symbol
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder, Store
from polyfuse.testing.cases.case import EXACT, Case, Tolerance
from polyfuse.testing.cases.loops import (
    BF16,
    BOOL,
    F16,
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

_M, _N = 9, 21


def memory_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file."""
    yield from _layouts(quick)
    yield from _sizes(quick)
    yield from _gathers(quick)
    yield from _stores(quick)


# --- layouts ------------------------------------------------------------------------------------------------


def _layouts(quick: bool) -> Iterator[Case]:
    i, j = axis("i0", _M), axis("i1", _N)
    forms: dict[str, IndexLike] = {
        "contiguous": i * _N + j,
        "transposed": j * _M + i,
        "row broadcast": j,
        "column broadcast": i,
        "scalar broadcast": 0,
        "strided": i * (3 * _N) + 2 * j,
        "offset": i * _N + j + 5,
        "reversed": (_M - 1 - i) * _N + (_N - 1 - j),
        "split and joined": (i * _N + j) // 3 * 3 + (i * _N + j + 1) % 3,
        "wrapped": (i * 5 + j * 2) % 50,
    }
    for dtype in (F32,) if quick else (F32, F64, I64, U8, BOOL, BF16):
        for row, form in forms.items():
            yield _copy(row, dtype, form, i * _N + j, 3 * _M * _N)
        yield _copy("transposed result", dtype, i * _N + j, j * _M + i, _M * _N)
        yield _copy("strided result", dtype, i * _N + j, (i * _N + j) * 2 + 1, _M * _N)
        for shift in (1, 3):
            yield _misaligned(dtype, shift)
    yield _four_axes()
    yield _in_place()


def _copy(row: str, dtype: DType, source: IndexLike, target: IndexLike, extent: int) -> Case:
    i, j = axis("i0", _M), axis("i1", _N)
    room = 2 * _M * _N + 2
    args = (reads("in0", dtype, extent), writes("out0", dtype, room))
    builder = Builder(f"copy_{row.replace(' ', '_')}", (i, j), (), args)
    value = load("in0", source, dtype)
    builder.once(Store("out0", target, _bent(value)))
    return one_case(builder, "layouts", row, str(dtype), tolerance=EXACT, hints=(_M, _N))


def _bent(value: Expr) -> Expr:
    """Something computed from a value, in the type in which it is stored."""
    dtype = value.dtype
    if dtype is BOOL:
        return apply("bitwise_not", value)
    if dtype.is_float:
        wide = cast(value, dtype.compute)
        return cast(apply("mul", wide, const(0.5, wide.dtype)), dtype)
    return apply("add", value, const(1, dtype))


def _misaligned(dtype: DType, shift: int) -> Case:
    count = 77
    i = axis("i0", count)
    builder = Builder("misaligned", (i,), (), (reads("in0", dtype, count), writes("out0", dtype, count)))
    builder.once(Store("out0", i, _bent(load("in0", i, dtype))))

    def source() -> Tensor:
        return values.plain(dtype, count + shift)[shift:]

    def target() -> Tensor:
        return torch.zeros(count + shift + 2, dtype=dtype.torch)[shift + 2 :]

    row = f"pointer off by {shift}"
    return one_case(builder, "layouts", row, str(dtype), (fresh(source, target),), EXACT, (count,))


def _four_axes() -> Case:
    a, b, c, d = (axis(f"i{k}", n) for k, n in enumerate((2, 3, 4, 5)))
    builder = Builder("four_axes", (a, b, c, d), (), (reads("in0", F32, 120), writes("out0", F32, 120)))
    value = load("in0", ((d * 4 + c) * 3 + b) * 2 + a, F32)
    builder.once(Store("out0", ((a * 3 + b) * 4 + c) * 5 + d, _bent(value)))
    return one_case(builder, "layouts", "four axes permuted", "f32", tolerance=EXACT, hints=(2, 3, 4, 5))


def _in_place() -> Case:
    i = axis("i0", 100)
    builder = Builder("in_place", (i,), (), (writes("io0", F32, 100, "inout"),))
    builder.once(Store("io0", i, apply("add", load("io0", i, F32), const(1.0, F32))))
    return one_case(builder, "layouts", "in place", "f32", tolerance=EXACT, hints=(100,))


# --- sizes --------------------------------------------------------------------------------------------------

_SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 33, 64, 100, 1025)


def _sizes(quick: bool) -> Iterator[Case]:
    for dtype in (F32,) if quick else (F32, F64, I64, I32, U8, BOOL, BF16, F16):
        for count in (0, 1, 17) if quick else (0, 1, 7, 16, 17, 64, 1025):
            i = axis("i0", count)
            builder = Builder(
                f"size_{count}", (i,), (), (reads("in0", dtype, count), writes("out0", dtype, count))
            )
            builder.once(Store("out0", i, _bent(load("in0", i, dtype))))
            yield one_case(builder, "sizes", str(count), str(dtype), tolerance=EXACT, hints=(count,))
        yield _dynamic(dtype)
    yield _dynamic_plane()


def _dynamic(dtype: DType) -> Case:
    n = symbol("s0")
    i = axis("i0", n)
    args = (reads("in0", dtype, n), writes("out0", dtype, n), KernelArg("s0", "size", I64, hint=64))
    builder = Builder("dynamic", (i,), (), args)
    builder.once(Store("out0", i, _bent(load("in0", i, dtype))))
    runs = [fresh(ordinary(dtype, count), zeros(dtype, count), count) for count in _SIZES]
    return one_case(builder, "sizes", "dynamic", str(dtype), runs, EXACT, (64,))


def _dynamic_plane() -> Case:
    m, n = symbol("s0"), symbol("s1", 1)
    i, j = axis("i0", m), axis("i1", n)
    sizes = (KernelArg("s0", "size", I64, hint=8), KernelArg("s1", "size", I64, hint=32))
    args = (reads("in0", F32, m * n), reads("in1", F32, n), writes("out0", F32, m * n), *sizes)
    builder = Builder("dynamic_plane", (i, j), (), args)
    builder.once(Store("out0", i * n + j, apply("add", load("in0", j * m + i, F32), load("in1", j, F32))))
    runs = [
        fresh(ordinary(F32, a * b), ordinary(F32, b, 2), zeros(F32, a * b), a, b)
        for a, b in ((0, 3), (1, 1), (3, 17), (16, 16), (5, 64))
    ]
    return one_case(builder, "sizes", "dynamic, two axes permuted", "f32", runs, EXACT, (8, 32))


# --- gathers ------------------------------------------------------------------------------------------------


def _gathers(quick: bool) -> Iterator[Case]:
    for dtype in (F32,) if quick else (F32, F64, I64, U8, BOOL, BF16):
        yield _rows_by_number(dtype)
        yield _padded(dtype)
    yield _two_steps()
    yield _chosen_rows_masked()


def _numbers(count: int, below: int, seed: int = 4) -> Callable[[], Tensor]:
    return lambda: (values.plain(I64, count, seed) * 7 + 3) % below


def _rows_by_number(dtype: DType) -> Case:
    i, j = axis("i0", 13), axis("i1", 19)
    args = (reads("in0", dtype, 11 * 19), reads("in1", I64, 13), writes("out0", dtype, 13 * 19))
    builder = Builder("rows_by_number", (i, j), (), args)
    value = load("in0", axis("@0", 11) * 19 + j, dtype, (load("in1", i, I64),))
    builder.once(Store("out0", i * 19 + j, _bent(value)))
    run = fresh(ordinary(dtype, 11 * 19), _numbers(13, 11), zeros(dtype, 13 * 19))
    return one_case(builder, "gathers", "rows by number", str(dtype), (run,), EXACT, (13, 19))


def _padded(dtype: DType) -> Case:
    """A frame around a picture: reads outside are masked."""
    i, j = axis("i0", 8), axis("i1", 23)
    inside = None
    for at, size in ((i, 6), (j, 20)):
        low = apply("ge", index_value(at - 1), const(0, I64))
        high = apply("lt", index_value(at - 1), const(size, I64))
        both = apply("bitwise_and", low, high)
        inside = both if inside is None else apply("bitwise_and", inside, both)
    value = load("in0", (i - 1) * 20 + j - 1, dtype, (), inside, const(1, dtype))
    args = (reads("in0", dtype, 120), writes("out0", dtype, 8 * 23))
    builder = Builder("padded", (i, j), (), args)
    builder.once(Store("out0", i * 23 + j, value))
    run = fresh(ordinary(dtype, 120), zeros(dtype, 8 * 23))
    return one_case(builder, "gathers", "masked at the borders", str(dtype), (run,), EXACT, (8, 23))


def _two_steps() -> Case:
    i = axis("i0", 45)
    first = load("in1", i, I64)
    second = load("in2", axis("@0", 30), I64, (first,))
    value = load("in0", axis("@0", 20) * 3 + 1, F32, (second,))
    args = (reads("in0", F32, 60), reads("in1", I64, 45), reads("in2", I64, 30), writes("out0", F32, 45))
    builder = Builder("two_steps", (i,), (), args)
    builder.once(Store("out0", i, value))
    run = fresh(ordinary(F32, 60), _numbers(45, 30), _numbers(30, 20, 5), zeros(F32, 45))
    return one_case(builder, "gathers", "number of a number", "f32", (run,), EXACT, (45,))


def _chosen_rows_masked() -> Case:
    """Numbers outside the table are legal where the mask hides them."""
    i = axis("i0", 50)
    number = load("in1", i, I64)
    ok = apply(
        "bitwise_and",
        apply("ge", number, const(0, I64)),
        apply("lt", number, const(9, I64)),
    )
    value = load("in0", axis("@0", 9), F32, (number,), ok, const(-1.0, F32))
    args = (reads("in0", F32, 9), reads("in1", I64, 50), writes("out0", F32, 50))
    builder = Builder("masked_numbers", (i,), (), args)
    builder.once(Store("out0", i, value))

    def numbers() -> Tensor:
        return values.plain(I64, 50, 6) * 100_000_000_000 // 40_000_000_000 - 4

    run = fresh(ordinary(F32, 9), numbers, zeros(F32, 50))
    return one_case(builder, "gathers", "masked numbers", "f32", (run,), EXACT, (50,))


# --- stores -------------------------------------------------------------------------------------------------

_STORE_TYPES = (F32, F64, I32, I64, BF16, F16, U8)


def _stores(quick: bool) -> Iterator[Case]:
    for mode in STORE_MODES:
        for dtype in (F32, I64) if quick else _STORE_TYPES:
            if not can_store(mode, dtype):
                continue
            if mode != "set":
                yield _colliding(mode, dtype)
            yield _permuted(mode, dtype)
    yield _masked_store()
    yield _dynamic_scatter()
    for wrong in (None, 0, 24, 49):
        yield _checked(wrong)


def _checked(wrong: int | None) -> Case:
    """A read at computed indices, beside a check of them that fails nowhere or at one point."""
    i = axis("i0", 50)
    args = (
        reads("in0", F32, 9),
        reads("in1", I64, 50),
        writes("io0", I64, 1, "inout"),
        writes("out0", F32, 50),
    )
    name = "in_range" if wrong is None else f"out_of_range_{wrong}"
    builder = Builder(f"checked_{name}", (i,), (), args)
    number = load("in1", i, I64)
    nearest = apply("minimum", apply("maximum", number, const(0, I64)), const(8, I64))
    builder.once(
        Store("io0", 0, number, CHECK_MODE, mask=apply("ne", nearest, number)),
        Store("out0", i, load("in0", axis("@0", 9), F32, (nearest,))),
    )

    def numbers() -> Tensor:
        found = values.plain(I64, 50, 6) % 9
        if wrong is not None:
            found[wrong] = 9 + wrong
        return found

    run = fresh(ordinary(F32, 9), numbers, zeros(I64, 1), zeros(F32, 50))
    case = one_case(builder, "checks", name.replace("_", " "), "f32", (run,), EXACT, (50,))
    return replace(case, stops=wrong is not None)


def _held(dtype: DType, count: int, mode: str) -> Callable[[], Tensor]:
    if mode == "mul" and dtype.is_float:
        return lambda: (1 + values.plain(F32, count, 8) / 50).to(dtype.torch)
    return ordinary(dtype, count, 8)


def _store_tolerance(mode: str, dtype: DType, collide: bool) -> Tolerance:
    if STORE_MODES[mode] in ("", "minimum", "maximum") or not dtype.is_float:
        return Tolerance(signed_zero=False)
    if dtype in (BF16, F16):
        # each addition rounds to few bits
        coarse = 0.1 if collide else 0.01
        return Tolerance(absolute=5 * coarse, relative=coarse, signed_zero=False)
    return Tolerance(absolute=1e-4, relative=1e-4, signed_zero=False)


def _colliding(mode: str, dtype: DType) -> Case:
    """Many points that write few elements."""
    i, j = axis("i0", 40), axis("i1", 6)
    args = (reads("in0", dtype, 240), reads("in1", I64, 40), writes("io0", dtype, 30, "inout"))
    builder = Builder(f"colliding_{mode}", (i, j), (), args)
    number = load("in1", i, I64)
    value = load("in0", i * 6 + j, dtype)
    builder.once(Store("io0", axis("@0", 5) * 6 + j, value, mode, (number,)))
    run = fresh(_held(dtype, 240, mode), _numbers(40, 5), _held(dtype, 30, mode))
    tolerance = _store_tolerance(mode, dtype, True)
    row = f"{mode}, colliding"
    return one_case(builder, "stores", row, str(dtype), (run,), tolerance, (40, 6))


def _permuted(mode: str, dtype: DType) -> Case:
    """Every element once, in another order."""
    i = axis("i0", 67)
    args = (reads("in0", dtype, 67), reads("in1", I64, 67), writes("io0", dtype, 67, "inout"))
    builder = Builder(f"permuted_{mode}", (i,), (), args)
    value = load("in0", i, dtype)
    builder.once(Store("io0", axis("@0", 67), value, mode, (load("in1", i, I64),)))

    def order() -> Tensor:
        return torch.arange(67) * 5 % 67

    run = fresh(_held(dtype, 67, mode), order, _held(dtype, 67, mode))
    tolerance = _store_tolerance(mode, dtype, False)
    return one_case(builder, "stores", f"{mode}, scattered", str(dtype), (run,), tolerance, (67,))


def _masked_store() -> Case:
    i = axis("i0", 61)
    value = load("in0", i, F32)
    positive = apply("gt", value, const(0.0, F32))
    args = (reads("in0", F32, 61), writes("io0", F32, 61, "inout"), writes("io1", F32, 4, "inout"))
    builder = Builder("masked_store", (i,), (), args)
    builder.once(
        Store("io0", i, value, mask=positive),
        Store("io1", _index(i % 4), value, "add", mask=positive),
    )
    run = fresh(ordinary(F32, 61), ordinary(F32, 61, 2), ordinary(F32, 4, 3))
    return one_case(builder, "stores", "masked", "f32", (run,), hints=(61,))


def _index(index: IndexLike) -> Index:
    assert isinstance(index, Index)
    return index


def _dynamic_scatter() -> Case:
    n = symbol("s0")
    i = axis("i0", n)
    sizes = (KernelArg("s0", "size", I64, hint=64),)
    args = (reads("in0", F32, n), reads("in1", I64, n), writes("io0", F32, 7, "inout"), *sizes)
    builder = Builder("dynamic_scatter", (i,), (), args)
    number = load("in1", i, I64)
    builder.once(Store("io0", axis("@0", 7), load("in0", i, F32), "add", (number,)))
    runs = [
        fresh(ordinary(F32, count), _numbers(count, 7), ordinary(F32, 7, 3), count)
        for count in (0, 1, 17, 130)
    ]
    return one_case(builder, "stores", "add, dynamic", "f32", runs, hints=(64,))
