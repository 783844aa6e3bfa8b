"""Rows that are moved, or combined bit by bit: whole registers of bytes, whatever the type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cpp_kernels import KernelBuilder, backend, compiled
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


@pytest.mark.parametrize("dtype", KINDS)
def test_rows_of_any_length_are_moved_and_filled(dtype: DType) -> None:
    kernels = {n: rows(n, dtype).build() for n in LENGTHS}
    # in 8 lanes: where the machine has 16, the shortest rows are less than a vector, and are not cut
    assert all("byte_row" in backend("avx2").emit(kernel).text for kernel in kernels.values())
    for n, kernel in kernels.items():
        a = numbers(5, n, dtype=dtype)
        out, ones = (torch.zeros(5, n + 1, dtype=dtype.torch) for _ in range(2))
        compiled(kernel)(a, out, ones)
        assert torch.equal(out, torch.cat([a[:, 1:], torch.ones(5, 2, dtype=dtype.torch)], 1))
        assert torch.equal(ones, torch.ones_like(ones))


@pytest.mark.parametrize("isa", ["", "avx2", "sse"])
@pytest.mark.parametrize("dtype", KINDS)
def test_rows_are_reversed(dtype: DType, isa: str) -> None:
    for n in (1, 17, 33, 200):
        k = KernelBuilder({"x0": 3, "x1": n})
        k.arg("a", dtype), k.out("o", dtype)
        s = k.section()
        s.store("o", k["x0"] * n + k["x1"], s.load("a", k["x0"] * n - k["x1"] + (n - 1)))
        kernel = k.build()
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
