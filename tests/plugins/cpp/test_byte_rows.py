"""Rows that are moved, or combined bit by bit: whole registers of bytes, whatever the type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cpp_kernels import KernelBuilder, backend, build_together, compiled
from polyfuse.ir.kernel import Alias
from polyfuse.ir.types import DType

pytestmark = pytest.mark.each_value

KINDS = (DType.bool, DType.i8, DType.i16, DType.bf16, DType.f32, DType.i64)
LENGTHS = (9, 15, 16, 17, 31, 33, 100)


def numbers(*shape: int, dtype: DType) -> Tensor:
    if dtype is DType.bool:
        return torch.rand(shape) > 0.5
    whole = torch.randint(-100, 100, shape)
    return (whole / 8).to(dtype.torch) if dtype.is_float else whole.to(dtype.torch)


def rows(length: int, dtype: DType) -> KernelBuilder:
    """Rows of a tensor [5, length] without their first element, between two that are constant."""
    k = KernelBuilder({"x0": 5, "x1": length + 1})
    k.arg("a", dtype), k.out("o", dtype), k.out("p", dtype)
    s = k.section()
    one = s.const(dtype is DType.bool or 1, dtype)
    s.store("p", k["x0"] * (length + 1) + k["x1"], one)
    inside = s.op("lt", s.index(k["x1"]), s.index(length - 1))
    s.store(
        "o",
        k["x0"] * (length + 1) + k["x1"],
        s.load("a", k["x0"] * length + k["x1"] + 1, mask=inside, other=one),
    )
    return k


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", KINDS)
def test_rows_of_any_length_are_moved_and_filled(dtype: DType, every: int) -> None:
    """Each type has a quarter of the lengths, and four types have all of them."""
    lengths = LENGTHS[KINDS.index(dtype) % every :: every]
    kernels = {n: rows(n, dtype).build() for n in lengths}
    # in 8 lanes: where the machine has 16, the shortest rows are less than a vector, and are not cut
    assert all("byte_row" in backend("avx2").emit(kernel).text for kernel in kernels.values())
    build_together(kernels.values())
    for n, kernel in kernels.items():
        a = numbers(5, n, dtype=dtype)
        out, ones = (torch.zeros(5, n + 1, dtype=dtype.torch) for _ in range(2))
        compiled(kernel)(a, out, ones)
        assert torch.equal(out, torch.cat([a[:, 1:], torch.ones(5, 2, dtype=dtype.torch)], 1))
        assert torch.equal(ones, torch.ones_like(ones))


@pytest.mark.quick(3)
@pytest.mark.parametrize("isa", ["", "avx2", "sse"])
@pytest.mark.parametrize("dtype", KINDS)
def test_rows_are_reversed(dtype: DType, isa: str) -> None:
    kernels = {}
    for n in (1, 17, 33, 200):
        k = KernelBuilder({"x0": 3, "x1": n})
        k.arg("a", dtype), k.out("o", dtype)
        s = k.section()
        s.store("o", k["x0"] * n + k["x1"], s.load("a", k["x0"] * n - k["x1"] + (n - 1)))
        kernels[n] = k.build()
    build_together(kernels.values(), isa=isa)
    for n, kernel in kernels.items():
        if n >= 16:
            assert "bytes_back" in backend(isa).emit(kernel).text
        a, out = numbers(3, n, dtype=dtype), torch.zeros(3, n, dtype=dtype.torch)
        compiled(kernel, isa)(a, out)
        assert torch.equal(out, a.flip(1))


def logic(dtype: DType, size: int, names: Sequence[str] = ("a", "b", "o")) -> KernelBuilder:
    k = KernelBuilder({"x0": size})
    k.arg(names[0], dtype), k.arg(names[1], dtype), k.out(names[2], dtype)
    s = k.section()
    a, b = s.load(names[0], k["x0"]), s.load(names[1], k["x0"])
    mixed = s.op("bitwise_or", s.op("bitwise_and", a, b), s.op("bitwise_not", a))
    s.store(names[2], k["x0"], s.op("bitwise_xor", mixed, s.const(dtype is DType.bool or 5, dtype)))
    return k


@pytest.mark.parametrize("isa", ["", "avx2", "sse"])
@pytest.mark.parametrize("dtype", [DType.bool, DType.i16, DType.i64])
def test_logic_works_on_bytes(dtype: DType, isa: str) -> None:
    kernel = logic(dtype, 101).build()
    assert "byte_row" in backend().emit(kernel).text
    a, b = numbers(101, dtype=dtype), numbers(101, dtype=dtype)
    out = torch.zeros_like(a)
    compiled(kernel, isa)(a, b, out)
    assert torch.equal(out, ((a & b) | ~a) ^ (True if dtype is DType.bool else 5))


def test_a_row_may_be_stored_where_it_is_read() -> None:
    kernel = replace(logic(DType.i16, 37).build(), aliases=(Alias("o", "a"),))
    assert "byte_row" in backend().emit(kernel).text
    a, b = numbers(37, dtype=DType.i16), numbers(37, dtype=DType.i16)
    want = ((a & b) | ~a) ^ 5
    compiled(kernel)(a, b, a)
    assert torch.equal(a, want)


def test_what_is_read_may_not_have_been_stored_to() -> None:
    k = KernelBuilder({"x0": 64})
    k.arg("a", DType.f32), k.out("o", DType.f32), k.out("p", DType.f32)
    s = k.section()
    value = s.load("a", k["x0"])
    s.store("o", k["x0"], s.const(1.0, DType.f32)), s.store("p", k["x0"], value)
    assert "byte_row" in backend().emit(k.build()).text
    shared = replace(k.build(), aliases=(Alias("o", "a"),))
    assert "byte_row" not in backend().emit(shared).text
    a, p = torch.randn(64), torch.zeros(64)
    want = a.clone()
    compiled(shared)(a, a, p)
    assert torch.equal(p, want) and torch.equal(a, torch.ones(64))


NUMBERS = (DType.i8, DType.u8)
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")


def every(dtype: DType) -> tuple[Tensor, Tensor]:
    """All pairs of numbers of a type, in another order each time."""
    if dtype is DType.bool:
        both = torch.cartesian_prod(torch.arange(2), torch.arange(2)).repeat(40, 1)
    else:
        both = torch.cartesian_prod(torch.arange(256), torch.arange(256))[torch.randperm(1 << 16)[:40001]]
    return tuple(side.to(torch.uint8).view(dtype.torch) for side in both.T.contiguous())


def of_bytes(op: str, dtype: DType, size: int, scalar: int | None = None) -> KernelBuilder:
    k = KernelBuilder({"x0": size})
    result = DType.bool if op in COMPARED else dtype
    k.arg("a", dtype), k.arg("b", dtype), k.out("o", result)
    s = k.section()
    a, b = s.load("a", k["x0"]), s.load("b", k["x0"])
    if scalar is not None:
        b = s.const(bool(scalar) if dtype is DType.bool else scalar, dtype)
    if op == "where":
        s.store("o", k["x0"], s.op("where", s.op("lt", a, b), b, a))
    else:
        s.store("o", k["x0"], s.op(op, a) if op in ("neg", "abs") else s.op(op, a, b))
    return k


OPERATIONS = [
    *((op, d) for op in ("add", "sub", "mul", "minimum", "maximum", "neg", "where") for d in NUMBERS),
    ("abs", DType.i8),
    *((op, d) for op in (*COMPARED, "where") for d in (*NUMBERS, DType.bool)),
]


# other instruction sets have the rows of bytes of the tests above
@pytest.mark.parametrize("isa", ["", *(pytest.param(isa, marks=pytest.mark.slow) for isa in ("avx2", "sse"))])
def test_numbers_of_a_byte_have_a_lane_each(isa: str) -> None:
    sides = {dtype: every(dtype) for dtype in (*NUMBERS, DType.bool)}
    of = {"where": lambda a, b: torch.where(a < b, b, a), "neg": lambda a, b: -a, "abs": lambda a, b: a.abs()}
    kernels = {
        (op, dtype, scalar): of_bytes(op, dtype, sides[dtype][0].numel(), scalar).build()
        for op, dtype in dict.fromkeys(OPERATIONS)
        for scalar in (None, 1)
    }
    build_together(kernels.values(), isa=isa)
    for (op, dtype, scalar), kernel in kernels.items():
        a, b = sides[dtype]
        assert "byte_row" in backend(isa).emit(kernel).text
        want = of.get(op, getattr(torch, op, None))(a, b if scalar is None else torch.tensor(1).to(b.dtype))
        out = torch.zeros_like(want)
        compiled(kernel, isa)(a, b, out)
        assert torch.equal(out, want), (op, dtype, scalar)


@pytest.mark.quick(4)
@pytest.mark.parametrize("size", [17, 19, 27, 40, 61, 64, 100])
def test_short_rows_of_bytes(size: int) -> None:
    a, b = (side[:size].clone() for side in every(DType.i8))
    kernels = {op: of_bytes(op, DType.i8, size).build() for op in ("lt", "where", "add")}
    build_together(kernels.values())
    for op, kernel in kernels.items():
        out = torch.zeros(size, dtype=torch.bool if op == "lt" else torch.int8)
        compiled(kernel)(a, b, out)
        want = {"lt": a < b, "where": torch.where(a < b, b, a), "add": a + b}[op]
        assert torch.equal(out, want)


def test_bytes_of_several_types() -> None:
    """Tests, conversions and choices in one row."""

    def function(m: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inside = (a > 3) & (b < 200) | m
        return torch.where(inside, a, b.to(torch.int8)), inside.to(torch.uint8) + b, a.to(torch.bool) ^ m

    (a, b), m = every(DType.u8), torch.rand(40001) > 0.5
    given = (m, a.view(torch.int8), b)
    found = torch.compile(function, backend="polyfuse", options={"backends": ["cpp"], "strict": True})(*given)
    assert all(torch.equal(x, y) for x, y in zip(found, function(*given), strict=True))


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16, DType.f64])
def test_signs_are_taken_away_and_turned_in_bytes(dtype: DType) -> None:
    """Each number of 16 bits, those that are no number included."""
    length = 1 << 16
    k = KernelBuilder({"x0": length})
    k.arg("a", dtype), k.out("o", dtype), k.out("p", dtype)
    s, i = k.section(), k["x0"]
    wide = s.load("a", i) if dtype is DType.f64 else s.cast(s.load("a", i), DType.f32)
    for buffer, op in (("o", "abs"), ("p", "neg")):
        value = s.op(op, wide)
        s.store(buffer, i, value if dtype is DType.f64 else s.cast(value, dtype))
    kernel = k.build()
    assert "byte_row" in backend("").emit(kernel).text
    patterns = torch.arange(length, dtype=torch.int32).to(torch.int16)
    a = patterns.view(torch.bfloat16).double() if dtype is DType.f64 else patterns.view(dtype.torch)
    o, p = torch.zeros_like(a), torch.zeros_like(a)
    compiled(kernel)(a, o, p)
    torch.testing.assert_close(o, a.abs(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(p, -a, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(p.signbit(), a.signbit().logical_not()) and not o.signbit().any()
