"""Tiles that are read along one axis and stored along another."""

from __future__ import annotations

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

OPTIONS = {"backends": ["halide", "interpreter"]}


def tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_whole_tiles_are_transposed(dtype: torch.dtype) -> None:
    x = tensor((96, 160), dtype)
    found = torch.compile(lambda x: x.t().contiguous(), backend="polyfuse", options=OPTIONS)(x)
    assert torch.equal(found, x.t())


@pytest.mark.quick(4)
@pytest.mark.parametrize("shape", [(16, 16), (17, 33), (100, 1000), (31, 16), (5, 40), (1, 64), (16, 15)])
def test_tiles_at_the_ends_of_rows(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.randn(shape[::-1])
    turn = torch.compile(
        lambda x, y: (x.t() * 2 + y).exp(), backend="polyfuse", options=OPTIONS, dynamic=False
    )
    torch.testing.assert_close(turn(x, y), (x.t() * 2 + y).exp())


def test_several_transposed_operands_and_dynamic_sizes() -> None:
    def mix(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2) * y + z.transpose(1, 2).sigmoid()

    for dynamic, sizes in ((False, [(50, 70)]), (True, [(48, 64), (50, 70)])):
        compiled = torch.compile(mix, backend="polyfuse", options=OPTIONS, dynamic=dynamic)
        for m, n in sizes:
            x, y, z = torch.randn(3, m, n), torch.randn(3, n, m), torch.randn(3, m, n)
            torch.testing.assert_close(compiled(x, y, z), mix(x, y, z))


def test_results_in_place_of_an_operand() -> None:
    x, y = torch.randn(64, 48), torch.randn(48, 64)
    expected = x.t() + y
    torch.compile(lambda x, y: y.add_(x.t()), backend="polyfuse", options=OPTIONS)(x, y)
    torch.testing.assert_close(y, expected)
