"""`flex_attention` on the CPU is two matmuls and kernels between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from polyfuse.compiler.reports.report import last_reports, reset_reports

BIAS = torch.randn(4)


def relative(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(s / 3) * 3 + (k - q) * 0.1


def by_head(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * BIAS[h] + torch.where(q >= k, 0.5, -0.5)


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k + 2) & (q - k < 7)  # the first two rows have no key


def nothing(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s


@pytest.mark.quick(2)
@pytest.mark.parametrize("score", [relative, by_head, nothing])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens_first", [False, True])
def test_flexible_attention(
    score: Callable[..., Any], masked: bool, dtype: torch.dtype, tokens_first: bool
) -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        mask = create_block_mask(window, None, None, 20, 20, device="cpu") if masked else None
        return flex_attention(
            query, key, value, score_mod=score, block_mask=mask, enable_gqa=True, return_lse=True
        )

    shapes = ((2, 20, 4, 8), (2, 20, 2, 8)) if tokens_first else ((2, 4, 20, 8), (2, 2, 20, 8))
    query, key, value = (torch.randn(shapes[i], dtype=dtype) for i in (0, 1, 1))
    if tokens_first:
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    wanted = attention(query, key, value)
    reset_reports()
    found = torch.compile(attention, backend="polyfuse")(query, key, value)
    assert not any("flex_attention" in name for r in last_reports() for name, _ in r.fallbacks)
    for got, expected in zip(found, wanted, strict=True):
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected)


def test_sizes_that_vary() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        return flex_attention(x, x, x, score_mod=relative)

    compiled = torch.compile(attention, backend="polyfuse", dynamic=True)
    for length in (12, 17):
        x = torch.randn(1, 2, length, 4)
        torch.testing.assert_close(compiled(x), attention(x))
    assert not last_reports()[-1].fallbacks


def test_a_function_that_reads_rows_is_left_to_eager_mode() -> None:
    table = torch.randn(20, 3)

    def summed(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[q].sum()

    def attention(x: torch.Tensor) -> torch.Tensor:
        return flex_attention(x, x, x, score_mod=summed)

    x = torch.randn(1, 2, 20, 4)
    torch.testing.assert_close(torch.compile(attention, backend="polyfuse")(x), attention(x))
    assert any("flex_attention" in name for name, _ in last_reports()[-1].fallbacks)
