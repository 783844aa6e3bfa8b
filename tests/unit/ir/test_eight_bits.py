"""Floating-point types of eight bits: loaded, stored and converted, as torch converts them."""

from __future__ import annotations

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import cast, const, load
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.nodes import Pointwise
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.ir.types import DType, from_torch
from polyfuse.rewrite.fold import round_half
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Store

TYPES = (DType.f8e4m3, DType.f8e5m2)
EDGES = (0.0, -0.0, 1.0, -1.5, 0.0625, 1e-3, 447.0, 448.0, 464.0, 480.0, 500.0, 57344.0, 61440.0, 7e4, 1e9)
VALUES = torch.tensor([*EDGES, float("inf"), float("-inf"), float("nan")])


def _bits(tensor: torch.Tensor) -> list[int]:
    return tensor.view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", TYPES)
def test_they_are_storage_types_of_one_byte(dtype: DType) -> None:
    assert (dtype.itemsize, dtype.compute, dtype.is_storage) == (1, DType.f32, True)
    assert dtype.is_float and dtype.is_signed and not dtype.is_integer
    assert from_torch(dtype.torch) is dtype


@pytest.mark.parametrize("dtype", TYPES)
def test_a_kernel_stores_what_torch_converts_to(dtype: DType) -> None:
    count = len(VALUES)
    i = axis("i0", count)
    args = (KernelArg("in0", "in", DType.f32, count), KernelArg("out0", "out", dtype, count))
    builder = Builder("narrow", (i,), (), args)
    builder.once(Store("out0", i, cast(load("in0", i, DType.f32), dtype)))
    kernel = builder.kernel((count,))
    assert parse(text(kernel)) == kernel
    found = torch.zeros(count, dtype=dtype.torch)
    run_kernel(kernel, (VALUES, found))
    assert _bits(found) == _bits(VALUES.to(dtype.torch))


@pytest.mark.parametrize("dtype", TYPES)
def test_constants_round_as_torch_does(dtype: DType) -> None:
    for value in VALUES.tolist():
        found, wanted = round_half(value, dtype), float(torch.tensor(value).to(dtype.torch).float())
        assert found == wanted or (found != found and wanted != wanted)
    assert cast(const(0.3, DType.f32), dtype).op == "cast"


@pytest.mark.parametrize("dtype", TYPES)
def test_the_cpp_backend_claims_them(dtype: DType) -> None:
    from polyfuse_cpp.backend import CppBackend

    i = axis("i0", 8)
    node = Pointwise("n", (i,), (), "b", i, cast(load("a", i, DType.f32), dtype))
    assert CppBackend(Settings()).claims(node)
