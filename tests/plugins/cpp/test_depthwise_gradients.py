"""Gradients of depthwise convolutions: what float64 gives, in eager mode's layout, nothing beyond borders."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.frontend.graph import ChannelsLast
from polyfuse.ir.types import DType
from polyfuse_cpp.onednn import library
from polyfuse_cpp.onednn.choices import library_choices

pytestmark = pytest.mark.skipif(
    not library_choices(), reason="this torch is built without oneDNN, whose layouts are tested"
)
BACKWARD = "aten.convolution_backward.default"
LAST = {"channels_last": "on", "strict": True}


@pytest.fixture(autouse=True)
def compile_anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    yield
    forget_sessions()


def network(window: nn.Conv2d) -> nn.Sequential:
    """A depthwise convolution between two layers that give it, and its gradient, their channels last."""
    return nn.Sequential(nn.Conv2d(4, window.in_channels, 1), window, nn.Conv2d(window.in_channels, 3, 1))


def gradients(call: Any, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of the input and of all parameters."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    result = call(x)
    factors = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape)
    (result * factors.to(result.dtype)).sum().backward()
    assert x.grad is not None
    return [x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def agrees(model: nn.Module, x: torch.Tensor, **options: Any) -> GraphReport:
    """Check the gradients against float64, within twice eager mode's error; the backward's report."""
    exact = copy.deepcopy(model).double()
    wanted, eager = gradients(exact, exact, x.double()), gradients(model, model, x)
    call = torch.compile(model, backend="polyfuse", options={**LAST, **options})
    found = gradients(call, model, x)
    ulp = torch.finfo(x.dtype).eps
    allowed = ulp if x.dtype is torch.bfloat16 else 32 * ulp  # sums of hundreds of numbers, in another order
    for mine, theirs, true in zip(found, eager, wanted, strict=True):
        sides = zip(mine.shape, mine.stride(), theirs.stride(), strict=True)
        assert all(a == b for extent, a, b in sides if extent > 1)
        scale = true.abs().max()
        limit = max(2 * (theirs.double() - true).abs().max(), 4 * allowed * scale)
        assert (mine.double() - true).abs().max() <= limit
    return next(report for report in reversed(last_reports()) if report.kind == "backward")


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "window", "stride", "padding", "dilation"),
    [
        (16, (3, 3), 1, 1, 1),
        (24, (3, 3), 2, 1, 1),
        (24, (5, 5), 1, 2, 1),
        (20, (5, 5), 2, 2, 1),
        (16, (7, 7), 1, 3, 1),
        (16, (7, 7), 3, 0, 1),
        (9, (5, 5), 1, 4, 2),
        (16, (5, 3), (1, 2), (2, 0), 1),
        (16, (5, 5), 1, 6, 1),  # a margin wider than the window
        (8, (11, 1), 1, (5, 0), 1),
        (8, (1, 11), 1, (0, 5), 1),
    ],
)
def test_gradients_agree(
    channels: int,
    window: tuple[int, int],
    stride: Any,
    padding: Any,
    dilation: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(channels + window[0])
    layer = nn.Conv2d(channels, channels, window, stride, padding, dilation, groups=channels)
    agrees(network(layer).to(dtype), torch.randn(2, 4, 15, 13, dtype=dtype))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation", "calls"),
    [
        (9, 1, 4, 1, ()),
        (4, 1, 3, 1, ()),  # causal
        (3, 1, 0, 5, ()),
        (5, 2, 2, 1, (BACKWARD,)),
        (3, 1, 4, 1, (BACKWARD,)),  # a margin wider than the window
        (32, 1, 16, 1, ()),
    ],
)
def test_gradients_along_one_axis(
    window: int, stride: int, padding: int, dilation: int, calls: tuple[str, ...], dtype: torch.dtype
) -> None:
    layer = nn.Conv1d(12, 12, window, stride, padding, dilation, groups=12)
    report = agrees(nn.Sequential(layer, nn.SiLU()).to(dtype), torch.randn(2, 12, 70, dtype=dtype))
    assert report.calls == calls


def test_gradients_along_one_axis_of_what_lies_across() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(16, 16, 4, padding=3, groups=16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.silu(self.layer((x * 2).transpose(1, 2))[..., :40]).transpose(1, 2)

    assert not agrees(Block(), torch.randn(2, 40, 16)).calls


def test_an_infinite_gradient_counts_within_the_line_alone() -> None:
    layer, x = nn.Conv1d(8, 8, 3, padding=1, groups=8), torch.rand(2, 8, 20) + 1
    call = torch.compile(layer, backend="polyfuse", options={"strict": True})
    change = torch.ones(2, 8, 20)
    change[1, 2, 0] = float("inf")
    (found,) = torch.autograd.grad(call(x), (layer.weight,), change)
    assert found.isfinite().flatten(1).all(1).tolist() == [channel != 2 for channel in range(8)]
    assert found[2, 0, 0].isfinite() and found[2, 0, 1:].isinf().all()


@pytest.mark.slow
def test_windows_that_a_library_is_slow_at_are_loops() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 5, padding=2, groups=16)
    report = agrees(network(layer), torch.randn(2, 4, 9, 9))
    assert report.calls.count(BACKWARD) == 2  # those of the layers around it


@pytest.mark.slow
def test_small_windows_stay_with_the_library() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16)
    report = agrees(network(layer), torch.randn(2, 4, 9, 9))
    assert report.calls.count(BACKWARD) == 3


@pytest.mark.slow
def test_sizes_may_vary() -> None:
    torch.manual_seed(0)
    model = network(nn.Conv2d(16, 16, 5, padding=2, groups=16))
    call = torch.compile(model, backend="polyfuse", options=LAST, dynamic=True)
    for size in ((2, 4, 9, 11), (3, 4, 12, 7)):  # one image would be a program of its own
        x = torch.randn(size)
        torch.testing.assert_close(
            gradients(call, model, x), gradients(model, model, x), rtol=1e-4, atol=1e-4
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)])
def test_gradients_that_nobody_asks_for(frozen: Sequence[str]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 5, padding=2, groups=16)
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    agrees(network(layer), torch.randn(2, 4, 9, 9))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinite_numbers_do_not_count_beyond_the_border(dtype: torch.dtype) -> None:
    def gradient(x: torch.Tensor, weight: torch.Tensor, change: torch.Tensor) -> Any:
        mask, ones = [True, True, False], [1, 1]
        return torch.ops.aten.convolution_backward(
            change, x, weight, None, ones, [2, 2], ones, False, [0, 0], 16, mask
        )

    torch.manual_seed(0)
    x, change = (torch.randn(1, 16, 6, 6, dtype=dtype) for _ in range(2))
    x, change = (v.to(memory_format=torch.channels_last) for v in (x, change))
    weight = torch.randn(16, 1, 5, 5, dtype=dtype)
    weight[3, 0, 0, 0] = float("inf")
    change[0, 5, 0, 0] = float("inf")
    x[0, 7, 5, 5] = float("nan")
    found = torch.compile(gradient, backend="polyfuse", options={"strict": True})(x, weight, change)
    eager = gradient(x.float(), weight.float(), change.float())  # float64 counts zeros beyond the border
    for mine, theirs in zip(found[:2], eager[:2], strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())


def test_training_in_16_bits_has_its_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "narrow_types", lambda: frozenset({DType.bf16}))
    weight, session = torch.empty(8, 8, 3, 3), session_for(Settings())
    wanted = {
        dtype: session.wants_channels_last(torch.empty(1, dtype=dtype), weight, True)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }
    assert wanted[torch.bfloat16] is ChannelsLast.ACTIVATIONS
    assert wanted[torch.float16] is wanted[torch.float32] is ChannelsLast.NONE
