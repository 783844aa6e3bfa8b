"""The short ways to operators mean what the operators mean."""

from __future__ import annotations

import pytest
import torch

from polyfuse.torch_compat.calls import fast_call
from polyfuse.torch_compat.ops import resolve

ATTENTION = {
    "aten._scaled_dot_product_flash_attention.default": (0.0, True),
    "aten._scaled_dot_product_efficient_attention.default": (None, True, 0.0, True),
    "aten._scaled_dot_product_cudnn_attention.default": (None, True, 0.0, True),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_devices(name: str) -> None:
    q, k, v = (torch.empty(2, 4, 16, 8, dtype=torch.bfloat16, device="meta") for _ in range(3))
    call, op = fast_call(name), resolve(name)
    assert call is not op and call is not op._op
    assert call is getattr(torch._C._VariableFunctions, name.split(".")[1])
    found, wanted = (f(q, k, v, *ATTENTION[name], scale=0.5) for f in (call, op))
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        else:
            assert mine == theirs


def test_matmuls_into_a_tensor() -> None:
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    out = torch.empty(3, 5)
    fast_call("aten.addmm.default", out=True)(bias, a, b, out=out)
    torch.testing.assert_close(out, bias + a @ b)
