"""Floating-point types of eight bits in generated code: every code and rounding as eager mode has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.ir.types import DType

KINDS = [d.torch for d in DType if d.is_eight_bit_float]
CODES = torch.arange(256).to(torch.uint8)
HIGH = torch.arange(1 << 16)
HALF = (HIGH - ((HIGH >> 15) << 16)).to(torch.int16).view(torch.float16)


def singles() -> Tensor:
    """Numbers around every rounding point: all upper halves of the bits with the lower ones that matter."""
    lows = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    parts = [((HIGH << 16) | low) - ((HIGH >> 15) << 32) for low in lows]
    return torch.cat(parts).to(torch.int32).view(torch.float32)


@pytest.fixture(params=["cpp", "halide"])
def generated(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """What a function gives when a backend alone generates its code."""
    pytest.importorskip("halide" if request.param == "halide" else "polyfuse_cpp")

    def run(function: Callable[..., Any], *args: Tensor, numerics: str = "eager") -> Any:
        torch._dynamo.reset()
        reset_reports()
        options = {"backends": [request.param], "strict": True, "graph_cache": False, "numerics": numerics}
        found = torch.compile(function, backend="polyfuse", options=options, dynamic=False)(*args)
        assert {launch.backend for report in last_reports() for launch in report.launches} == {request.param}
        return found

    return run


def same(found: Tensor, wanted: Tensor) -> bool:
    """Bit for bit, but for the payload of NaN in wider types."""
    assert found.dtype == wanted.dtype
    if found.dtype.itemsize == 1:
        return torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    if not found.is_floating_point():
        return torch.equal(found, wanted)
    both = found.isnan() & wanted.isnan()
    return bool((both | (found == wanted) & (found.signbit() == wanted.signbit())).all())


def test_to_eight_bits(generated: Callable[..., Any]) -> None:
    given = (singles(), HALF, HALF.view(torch.int16).view(torch.bfloat16), singles().double() * 1.0000001)
    given += (torch.arange(-300, 300), CODES, torch.tensor([True, False]))

    def narrowed(*given: Tensor) -> list[Tensor]:
        return [x.to(kind) for kind in KINDS for x in given]

    for found, wanted in zip(generated(narrowed, *given), narrowed(*given), strict=True):
        assert same(found, wanted), wanted.dtype


def test_from_eight_bits(generated: Callable[..., Any]) -> None:
    wide = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, *KINDS)

    def widened(*given: Tensor) -> list[Tensor]:
        return [x.to(kind) for x in given for kind in wide]

    given = [CODES.view(kind) for kind in KINDS]
    for found, wanted in zip(generated(widened, *given), widened(*given), strict=True):
        assert same(found, wanted), wanted.dtype


@pytest.mark.slow
def test_elements_that_are_moved(generated: Callable[..., Any]) -> None:
    indices = torch.tensor([3, 200, 7, 7, 0])

    def moved(*given: Tensor) -> list[Tensor]:
        found = []
        for x in given:
            grid = x.view(16, 16)
            found += [torch.cat([x, x]), x[indices], grid.t().contiguous(), grid[2:5, ::2].clone()]
            found += [torch.where(indices > 5, x[:5], x[5:10]), torch.full((5,), 1.3, dtype=x.dtype)]
        return found

    given = [CODES.view(kind) for kind in KINDS]
    for found, wanted in zip(generated(moved, *given), moved(*given), strict=True):
        assert same(found, wanted), wanted.dtype


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_and_back(generated: Callable[..., Any], kind: torch.dtype) -> None:
    """Scales, codes, what they stand for, sums and the largest values of rows, with default numerics."""
    most = torch.finfo(kind).max

    def quantised(x: Tensor) -> tuple[Tensor, ...]:
        largest = x.abs().amax(-1, keepdim=True)
        scale = largest / most
        codes = (x / scale).clamp(-most, most).to(kind)
        back = codes.float() * scale
        return scale, codes, back, back.sum(-1), largest

    x = torch.randn(7, 300) * 20
    scale, codes, back, sums, largest = generated(quantised, x.clone(), numerics="fast")
    eager = quantised(x)
    assert torch.equal(largest, eager[4])
    torch.testing.assert_close(scale, eager[0], rtol=1e-6, atol=0)
    # a quotient beside the middle of two codes may be rounded to either of them, and to no third one
    assert codes.dtype is kind
    far = (codes.view(torch.uint8).int() - eager[1].view(torch.uint8).int()).abs()
    assert far.max() <= 1 and far.count_nonzero() <= 0.01 * far.numel()
    exact = x.double() / scale.double()
    error, usual = ((c.double() - exact).abs() for c in (codes, eager[1]))
    assert bool((error <= usual + 1e-5 * exact.abs()).all())
    torch.testing.assert_close(back, (codes.double() * scale.double()).float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.double(), back.double().sum(-1), rtol=0, atol=1e-3)
