"""Matmuls are recognised in kernels, and taken apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polyfuse
from gemm_kernels import kernels_of
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType
from polyfuse.kit import Contraction, match
from polyfuse.kit.contraction import divided_depth
from polyfuse.symbolic import axis_size


def _one(function: Any, *args: torch.Tensor) -> Contraction:
    kernels = kernels_of(function, *args)
    assert len(kernels) == 1
    found = match(kernels[0])
    assert found is not None
    return found


def test_rows_columns_and_depth() -> None:
    found = _one(lambda a, b: a @ b, torch.randn(7, 5), torch.randn(5, 9))
    assert found.shape == (1, 7, 9, 5)
    assert [axis_size(a) for a in (*found.rows, *found.columns, *found.depth)] == [7, 9, 5]
    assert found.left.plain is not None
    assert found.right.plain is not None
    assert found.dtype is DType.f32
    assert [s.op for s in found.epilogue] == ["store"]


def test_batch() -> None:
    found = _one(torch.bmm, torch.randn(3, 7, 5), torch.randn(3, 5, 9))
    assert found.shape == (3, 7, 9, 5)


def test_an_epilogue_takes_what_it_needs_and_nothing_else() -> None:
    function = lambda a, b, c: F.gelu(a @ b + c) * 2  # noqa: E731
    found = _one(function, torch.randn(7, 5), torch.randn(5, 9), torch.randn(9))
    assert [s.op for s in found.epilogue].count("load") == 1
    assert "erf" in [s.op for s in found.epilogue]
    names = {name for s in found.epilogue for name in s.args}
    assert found.accumulator in names
    assert found.left.value not in names


def test_half_precision_operands_stay_as_they_are() -> None:
    found = _one(torch.mm, torch.randn(7, 5).bfloat16(), torch.randn(5, 9).bfloat16())
    assert found.left.dtype is DType.bf16
    assert found.dtype is DType.f32


def test_a_vector_has_no_rows() -> None:
    found = _one(lambda a, b: a @ b, torch.randn(1, 5), torch.randn(5, 9))
    assert found.rows == ()
    assert found.shape == (1, 1, 9, 5)


def test_convolution_has_several_depth_axes_and_a_mask() -> None:
    function = lambda x, w: F.conv2d(x, w, padding=1)  # noqa: E731
    found = _one(function, torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3))
    assert found.shape == (1, 2 * 81, 6, 36)
    assert found.left.plain is None
    assert found.right.plain is not None


def test_groups_of_a_convolution_are_a_batch() -> None:
    function = lambda x, w: F.conv2d(x, w, groups=2)  # noqa: E731
    kernels = kernels_of(function, torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3))
    found = match(kernels[0])
    assert found is not None
    assert found.shape == (2, 2 * 7 * 7, 3, 2 * 3 * 3)


@pytest.mark.parametrize(
    "sizes, parts, expected",
    [
        ((4096,), 2, (0, 2048)),
        # the last part is shorter, and each begins at a multiple of as much as leaves it long enough
        ((11008,), 6, (0, 1920)),
        ((86, 64, 2), 4, (0, 22)),
        ((86, 64, 2), 8, (0, 11)),
        # an odd count in each part, but an even one of a later axis
        ((6, 64), 2, (1, 32)),
        ((3, 3, 4), 2, (2, 2)),
        ((5,), 4, (-1, 0)),
    ],
)
def test_a_depth_is_divided(sizes: tuple[int, ...], parts: int, expected: tuple[int, int]) -> None:
    assert divided_depth(sizes, parts) == expected


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "function", [lambda a: a.sum(-1), lambda a: a + 1, lambda a: a.softmax(-1), lambda a: a.cumsum(-1)]
)
def test_other_kernels_are_no_contractions(function: Any) -> None:
    for kernel in kernels_of(function, torch.randn(7, 5)):
        assert isinstance(kernel, Kernel)
        assert match(kernel) is None


def test_the_kit_is_public() -> None:
    assert polyfuse.__version__
