"""Floating-point tensors of eight bits."""

from __future__ import annotations

import pytest
import torch
from lowered import check


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_eight_bits_are_rounded_to_on_the_way(dtype: torch.dtype, numerics: str) -> None:
    x = torch.cat(
        [torch.randn(40) * 100, torch.tensor([0.0, -0.0, 448.0, 500.0, 7e4, float("inf"), float("nan")])]
    )

    def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        narrow = (x * 3).to(dtype)
        return narrow.to(torch.float32) + 1, narrow.to(torch.bfloat16)

    check(quantised, x, exact=True, numerics=numerics)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_as_operands_and_results(dtype: torch.dtype) -> None:
    x, scale = torch.randn(6, 5).to(dtype), torch.rand(5)

    def scaled(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.to(torch.float32) * scale
        return wide.sum(-1), wide.to(dtype).view(torch.uint8)

    check(scaled, x, scale, native=False)
