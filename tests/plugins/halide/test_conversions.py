"""Conversions whose results are computed with: Halide makes one of two that follow each other."""

from __future__ import annotations

import math
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


@pytest.mark.quick(3)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("source", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("target", (torch.int32, torch.int64))
def test_negative_numbers_become_whole_ones(use: str, source: torch.dtype, target: torch.dtype) -> None:

    def function(x: torch.Tensor) -> torch.Tensor:
        return USES[use](x.to(target))

    x = torch.tensor(NUMBERS * 3, dtype=source)
    options = {"backends": ["halide"], "strict": True, "cache": False}
    assert torch.equal(torch.compile(function, backend="polyfuse", options=options)(x), function(x))


SPECIAL = (math.inf, -math.inf, math.nan, 65504.0, -65504.0, 2.0, 0.5, 0.0, -0.0, 6e-8)
ASKED: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "log": lambda x, to: x.to(to).log(),
    "sine": lambda x, to: x.to(to).sin(),
    "chosen": lambda x, to: torch.where(x > 1, math.inf, x).to(to).log(),
    "is infinite": lambda x, to: x.to(to).isinf(),
    "is below": lambda x, to: x.to(to) < math.inf,
    "there and back": lambda x, to: torch.where(x > 1, -math.inf, x).to(to).to(x.dtype),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("source", (torch.float16, torch.float32))
def test_infinities_of_16_bits(asked: str, source: torch.dtype) -> None:
    """LLVM took what is converted from or to f16 for finite numbers."""
    options = {"backends": ["halide"], "strict": True, "cache": False}
    run = torch.compile(ASKED[asked], backend="polyfuse", options=options)
    x = torch.tensor(SPECIAL * 4, dtype=source)
    torch.testing.assert_close(run(x, torch.float16), ASKED[asked](x, torch.float16), equal_nan=True)


def test_all_numbers_of_16_bits() -> None:
    options = {"backends": ["halide"], "strict": True, "cache": False}
    half = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    run = torch.compile(lambda x: x.float() + 0, backend="polyfuse", options=options)
    torch.testing.assert_close(run(half), half.float() + 0, rtol=0, atol=0, equal_nan=True)
    whole = torch.cat([half.float() * scale for scale in (1.0, 1.0002, 0.9997, 3.7)])
    run = torch.compile(lambda x: x.half(), backend="polyfuse", options=options)
    torch.testing.assert_close(run(whole), whole.half(), rtol=0, atol=0, equal_nan=True)
