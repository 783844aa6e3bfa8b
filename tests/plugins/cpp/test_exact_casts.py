"""Bytes that become 16-bit floats are exact, so that no kernel rounds them."""

from __future__ import annotations

import pytest
import torch

import polyfuse


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("source", [torch.int8, torch.uint8, torch.bool])
def test_every_byte_is_exact(dtype: torch.dtype, source: torch.dtype) -> None:
    x = torch.arange(256).to(source)
    factor = torch.randn(256).to(dtype)

    def scaled(x: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to(dtype) * factor, (x.to(dtype).float() * factor.float()).sum()

    compiled = torch.compile(scaled, backend="polyfuse", options={"strict": True})
    actual, code = polyfuse.run_and_get_code(compiled, x, factor)
    product, total = scaled(x, factor)
    assert torch.equal(actual[0], product)
    torch.testing.assert_close(actual[1], total, rtol=1e-5, atol=1e-3)
    assert "round_to<" not in str(code[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wider_integers_are_rounded(dtype: torch.dtype) -> None:
    x = torch.tensor([256, 257, 259, 2047, 2049, 32767, -257, -32768], dtype=torch.int16)
    compiled = torch.compile(lambda x: x.to(dtype).float() + 1, backend="polyfuse", options={"strict": True})
    assert torch.equal(compiled(x), x.to(dtype).float() + 1)
