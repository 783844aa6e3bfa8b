"""Values that depend on the position along the lanes alone are computed once, for all rows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, symbol

f32, i64 = DType.f32, DType.i64
pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "sse")


def waves(rows: IndexLike, columns: IndexLike, dtype: DType = f32) -> KernelBuilder:
    """``a * sin(column) + cos(column / 3)`` where the column is odd, else ``a``."""
    k = KernelBuilder({"x0": rows, "x1": columns}, hints=(100, 100))
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section()
    position = s.cast(s.index(k["x1"]), dtype)
    at = k["x0"] * columns + k["x1"]
    value = s.load("a", at)
    wave = s.op("mul", value, s.op("sin", position))
    wave = s.op("add", wave, s.op("cos", s.op("div", position, s.const(3.0, dtype))))
    odd = s.op("eq", s.index(k["x1"] % 8), s.const(1, i64))
    s.store("o", at, s.op("where", odd, wave, value))
    for size in (rows, columns):
        if not isinstance(size, int):
            k.size(str(size))
    return k


def expected(a: torch.Tensor) -> torch.Tensor:
    position = torch.arange(a.shape[1]).to(a.dtype)
    return torch.where(position % 8 == 1, a * position.sin() + (position / 3).cos(), a)


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, DType.f64])
@pytest.mark.parametrize("shape", [(64, 16), (70, 37), (200, 5), (65, 96)])
def test_tables_hold_what_rows_would_compute(shape: tuple[int, int], dtype: DType, isa: str) -> None:
    kernel = waves(*shape, dtype).build()
    assert "table_" in backend(isa).emit(kernel).text
    a, o = torch.randn(shape, dtype=dtype.torch), torch.zeros(shape, dtype=dtype.torch)
    compiled(kernel, isa)(a, o)
    torch.testing.assert_close(o, expected(a))


def test_the_number_of_rows_need_not_be_known() -> None:
    kernel = waves(symbol("s0"), 40).build()
    assert "table_" in backend().emit(kernel).text
    for rows in (0, 1, 3, 100):
        a, o = torch.randn(rows, 40), torch.zeros(rows, 40)
        compiled(kernel)(a, o, rows)
        torch.testing.assert_close(o, expected(a))


def test_few_rows_long_ones_and_unknown_ones_have_no_table() -> None:
    for shape in ((8, 64), (100, 20_000), (100, symbol("s0"))):
        assert "table_" not in backend().emit(waves(*shape).build()).text


def test_what_is_cheap_or_read_from_memory_is_no_table() -> None:
    k = KernelBuilder({"x0": 100, "x1": 64})
    k.arg("a"), k.arg("b"), k.out("o")
    s = k.section()
    at = k["x0"] * 64 + k["x1"]
    bias = s.op("exp", s.load("b", k["x1"]))
    cheap = s.op("add", s.cast(s.index(k["x1"]), f32), s.const(1.0))
    s.store("o", at, s.op("add", s.op("mul", s.load("a", at), bias), cheap))
    assert "table_" not in backend().emit(k.build()).text


@pytest.mark.slow
@pytest.mark.parametrize("corners", [False, True])
def test_interpolation_by_any_factor(corners: bool) -> None:
    def resample(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(29, 43), mode="bilinear", align_corners=corners)

    x = torch.randn(2, 3, 17, 19, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    wanted, found = resample(x), torch.compile(resample, backend="polyfuse")(other)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    seed = torch.randn_like(wanted)
    wanted.backward(seed)
    found.backward(seed)
    torch.testing.assert_close(other.grad, x.grad, rtol=1e-5, atol=1e-5)


def test_positions_of_a_transformer() -> None:
    def positions(x: torch.Tensor) -> torch.Tensor:
        frequency = torch.exp(torch.arange(x.shape[-1]) * (-math.log(10_000.0) / x.shape[-1]))
        return x * frequency + torch.sin(frequency * 3)

    x = torch.randn(2, 80, 48)
    torch.testing.assert_close(torch.compile(positions, backend="polyfuse")(x), positions(x))
