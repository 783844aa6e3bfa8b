"""What is done inside and around library calls: activations, biases, operands of attention.

`tests/plugins/triton/test_activations.py`, `tests/unit/lowering/test_gemms.py` and
`tests/unit/frontend/test_attention.py` say the same without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfuse.compiler.reports.report import last_reports, reset_reports

pytestmark = pytest.mark.gpu


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch.compiler.reset()
    reset_reports()
    return torch.compile(function, backend="polyfuse")


def _calls() -> str:
    (report,) = last_reports()
    return str(report)


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("activation", [_tanh_gelu, F.relu])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_in_the_epilogue(dtype: torch.dtype, activation: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(512, 1024, device="cuda", dtype=dtype)
    x = torch.randn(8, 128, 512, device="cuda", dtype=dtype) * 4
    x[0, 0, 0], x[0, 1, 0], x[0, 2, 0] = float("nan"), float("inf"), -float("inf")

    def function(x: Tensor) -> Tensor:
        return activation(linear(x))

    with torch.no_grad():
        found = _compiled(function)(x)
        assert dict(last_reports()[0].rewrites)["triton.activation-in-epilogue"] == 1
        expected = function(x)
        wide = activation(F.linear(x.double(), linear.weight.double(), linear.bias.double()))
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)
    finite = wide.isfinite()
    error = (found.double() - wide)[finite].abs().max()
    assert error <= 1.1 * (expected.double() - wide)[finite].abs().max()


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("groups", [1, 16])
def test_biases_of_convolutions(channels_last: bool, groups: int) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(16, 32, 3, groups=groups), nn.GELU(), nn.ConvTranspose2d(32, 8, 2), nn.ReLU()
    )
    model = layers.to("cuda", torch.bfloat16)
    x = torch.randn(4, 16, 30, 30, device="cuda", dtype=torch.bfloat16)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        found, expected = _compiled(model)(x), model(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert found.stride() == expected.stride()


def test_attention_with_a_relative_bias_and_a_repeated_mask() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 8, 197, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    table = torch.randn(197, 197, 8, device="cuda", dtype=torch.bfloat16)
    visible = torch.ones(2, 1, 197, 1, device="cuda", dtype=torch.bool).expand(-1, -1, -1, 197)

    def relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, table.permute(2, 0, 1)[None].expand(2, -1, -1, -1))

    def masked(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, visible)

    for function, mask in ((relative, table), (masked, visible)):
        with torch.no_grad():
            found, expected = _compiled(function)(q, k, v, mask), function(q, k, v, mask)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        assert found.stride() == expected.stride()
        assert "bmm" not in _calls()


@pytest.mark.parametrize("width", [36, 64])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_that_a_model_spells_out(width: int, masked: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 49, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    mask = (
        torch.randn(4, 49, 49, device="cuda", dtype=torch.bfloat16)
        if masked
        else torch.zeros((), device="cuda")
    )

    def spelled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.mT / 8
        return torch.softmax(scores + mask if masked else scores, -1) @ v

    with torch.no_grad():
        found, expected = _compiled(spelled)(q, k, v, mask), spelled(q, k, v, mask)
        exact = spelled(q.double(), k.double(), v.double(), mask.double())
    assert dict(last_reports()[0].rewrites).get("fuse-attention", 0) == (not masked)
    assert found.stride() == expected.stride()
    assert (found.double() - exact).norm() <= 1.1 * (expected.double() - exact).norm()


def test_gradients_through_a_relative_bias() -> None:
    torch.manual_seed(0)
    shapes = ((2, 4, 40, 64),) * 3 + ((40, 40, 4),)
    leaves = [torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes]

    def relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, table.permute(2, 0, 1)[None].expand(2, -1, -1, -1))

    def gradients(function: Callable[..., Tensor], wide: bool = False) -> list[Tensor]:
        given = [t.detach().double().requires_grad_() for t in leaves] if wide else leaves
        return list(torch.autograd.grad(function(*given).square().sum(), given))

    found, expected, exact = (
        gradients(_compiled(relative)),
        gradients(relative),
        gradients(relative, wide=True),
    )
    for ours, theirs, truth in zip(found, expected, exact, strict=True):
        scale = truth.norm()
        assert (ours.double() - truth).norm() / scale <= 2 * (theirs.double() - truth).norm() / scale + 1e-2
