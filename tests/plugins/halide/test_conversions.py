"""Conversions whose results are computed with: Halide makes one of two that follow each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

NUMBERS = (-2.0, -3.0, -5.5, -0.75, 0.0, 1.5, 300.7, -300.7)

USES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda whole: whole.sum(),
    "cumsum": lambda whole: whole.cumsum(0),
    "add": lambda whole: whole + 3,
    "mul": lambda whole: whole * 3,
    "shift": lambda whole: whole << 1,
    "bytes": lambda whole: whole.to(torch.uint8),
}


@pytest.mark.each_value
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("source", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("target", (torch.int32, torch.int64))
def test_negative_numbers_become_whole_ones(use: str, source: torch.dtype, target: torch.dtype) -> None:

    def function(x: torch.Tensor) -> torch.Tensor:
        return USES[use](x.to(target))

    x = torch.tensor(NUMBERS * 3, dtype=source)
    options = {"backends": ["halide"], "strict": True, "cache": False}
    assert torch.equal(torch.compile(function, backend="polyfuse", options=options)(x), function(x))
