"""Remainders of quotients that are no f32, and the sign of zero where eager mode depends on the layout."""

from __future__ import annotations

import pytest
import torch

from polyfuse.ir.ops import SCALAR_OPS
from requirements import HALIDE

A = torch.tensor([3e38, -3e38, 2e38, 7.5, -7.5, 1.0, -0.0, 0.3]).repeat_interleave(6)
B = torch.tensor([0.3, -0.3, 1e-30, 1.2e-38, 7.5, -1e-45]).repeat(8)


def exact(name: str) -> torch.Tensor:
    """What eager mode computes of single numbers."""
    return torch.stack([getattr(torch, name)(a, b) for a, b in zip(A, B, strict=True)])


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_the_reference_is_exact(name: str) -> None:
    check(SCALAR_OPS[name].reference(A, B), exact(name))


@pytest.mark.parametrize("backend", ["cpp", "halide"])
def test_generated_code_is_exact_and_keeps_zeros(backend: str) -> None:
    if backend == "halide":
        pytest.importorskip("halide", reason=HALIDE)

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fmod(a, b), torch.remainder(a, b), torch.nn.functional.gelu(a * 0.0)

    torch._dynamo.reset()
    options = {"backends": [backend], "strict": True}
    fmod, remainder, zeros = torch.compile(f, backend="polyfuse", options=options)(A, B)
    check(fmod, exact("fmod"))
    check(remainder, exact("remainder"))
    with torch.backends.mkldnn.flags(enabled=False):
        check(zeros, torch.nn.functional.gelu(A * 0.0))
