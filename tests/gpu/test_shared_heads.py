"""Keys and values that a model repeats for attention are given to torch's kernel as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

from polyfuse.compiler.reports.report import last_reports, reset_reports

pytestmark = pytest.mark.gpu

HEADS, TIMES, WIDTH = 4, 4, 64


def decode(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
    k, v = (torch.cat(pair, 2).repeat_interleave(TIMES, 1) for pair in zip(past, (k, v), strict=True))
    return attention(q, k, v)


@pytest.mark.parametrize("queries", (1, 7))
@pytest.mark.parametrize("seen", (0, 33, 700))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("library", (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION))
def test_a_step_of_decoding(queries: int, seen: int, dtype: torch.dtype, library: SDPBackend) -> None:
    if library is SDPBackend.CUDNN_ATTENTION and queries + seen == 1:
        pytest.skip("cuDNN has no kernel for a single key, in eager mode neither")
    torch.manual_seed(seen)
    q = torch.randn(3, HEADS * TIMES, queries, WIDTH, device="cuda", dtype=dtype)
    k, v = (torch.randn(3, HEADS, queries, WIDTH, device="cuda", dtype=dtype) for _ in range(2))
    past = torch.randn(2, 3, HEADS, seen, WIDTH, device="cuda", dtype=dtype)
    torch.compiler.reset()
    reset_reports()
    compiled = torch.compile(decode, backend="polyfuse", options={"graph_cache": False})
    with sdpa_kernel(library):
        found, eager = compiled(q, k, v, past), decode(q, k, v, past)
    exact = decode(*(x.double().cpu() for x in (q, k, v, past))).to("cuda", dtype)
    torch.testing.assert_close(found, exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    # a step along an axis of one number is never taken
    steps = zip(found.shape, found.stride(), eager.stride(), strict=True)
    assert all(ours == theirs for size, ours, theirs in steps if size > 1)
    (report,) = last_reports()
    assert dict(report.rewrites).get("share-heads") == 1
