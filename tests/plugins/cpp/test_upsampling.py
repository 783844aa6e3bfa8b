"""Transposed convolutions as convolutions of their phases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.frontend import traced
from polyfuse.frontend.decompositions import without_libraries
from polyfuse.frontend.freezing.transposed import split_transposed


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of each graph were rewritten."""
    torch._dynamo.reset()  # all compile the forward of one class
    counts: list[int] = []

    def counted(state: Any) -> int:
        counts.append(split_transposed(state))
        return counts[-1]

    monkeypatch.setattr(traced, "split_transposed", counted)
    return counts


def agree(model: nn.Module, compiled: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("batch", [1, 3])
def test_frozen_ones_are_convolutions_of_one_pixel(batch: int, rewritten: list[int]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 16, (3, 1), stride=(3, 1), bias=False),
        nn.Tanh(),
        nn.ConvTranspose2d(16, 20, (1, 2), stride=(1, 2)),
        nn.Conv2d(20, 6, 3, stride=2),
        nn.ConvTranspose2d(6, 3, 3, stride=3),
    ).eval()
    nn.init.normal_(model[2].running_mean, std=0.1)
    options = {"freezing": True, "strict": True}
    compiled = torch.compile(model, backend="polyfuse", options=options, dynamic=False)
    x = torch.randn(batch, 3, 5, 7)
    agree(model, compiled, x)
    assert rewritten == [4]
    with torch.no_grad():
        model[1].weight.mul_(1.5)
        model[6].bias.add_(1)
    agree(model, compiled, x)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "added"),
    [
        (4, 2, 1, 0),
        (3, 2, 1, 1),
        (3, 2, 0, 0),  # phases of one and of two taps
        (5, 2, 2, 1),
        ((2, 4), (1, 2), 0, 0),
        (2, 2, 1, 0),  # cut
        (3, 1, 1, 0),
        ((5, 3), 3, (0, 1), 2),
    ],
)
def test_overlapping_windows(
    kernel: Any, stride: Any, padding: Any, added: Any, rewritten: list[int]
) -> None:
    layer = nn.ConvTranspose2d(16, 16, kernel, stride, padding, added)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), layer, nn.ReLU(), nn.Conv2d(16, 4, 1)).eval()
    options = {"freezing": True, "strict": True}
    compiled = torch.compile(model, backend="polyfuse", options=options, dynamic=False)
    agree(model, compiled, torch.randn(2, 3, 6, 8))
    assert rewritten == [1]


def test_lines_and_single_pixels(rewritten: list[int]) -> None:
    lines = nn.Sequential(
        nn.Conv1d(8, 16, 3), nn.LeakyReLU(), nn.ConvTranspose1d(16, 16, 8, 4, 2), nn.Conv1d(16, 8, 1)
    ).eval()
    options = {"freezing": True}
    compiled = torch.compile(lines, backend="polyfuse", options=options, dynamic=False)
    agree(lines, compiled, torch.randn(2, 8, 12))
    pixel = nn.Sequential(
        nn.ConvTranspose2d(24, 16, 4), nn.ReLU(), nn.ConvTranspose2d(16, 16, 4, 2, 1)
    ).eval()
    compiled = torch.compile(pixel, backend="polyfuse", options=options, dynamic=False)
    agree(pixel, compiled, torch.randn(2, 24, 1, 1))
    assert rewritten == [1, 2]


def test_few_pixels_stay_as_they_were_traced_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    seen: list[bool] = []
    spread = traced.spread_channels_last

    def counted(module: Any, *args: Any) -> int:
        count = spread(module, *args)
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.convolution.default and node.args[6]:
                seen.append(node.args[0].meta["val"].is_contiguous())
        return count

    monkeypatch.setattr(traced, "spread_channels_last", counted)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.Conv2d(16, 16, 3)
    ).eval()
    compiled = torch.compile(model, backend="polyfuse", dynamic=False)
    agree(model, compiled, torch.randn(1, 8, 4, 4))
    agree(model, compiled, torch.randn(1, 8, 20, 20))
    assert seen == [True, False]


def test_others_stay(rewritten: list[int]) -> None:
    model = nn.Sequential(
        nn.ConvTranspose2d(16, 16, 2, stride=3),
        nn.ConvTranspose2d(16, 16, 2, stride=2, groups=2),
        nn.ConvTranspose2d(16, 16, 2, stride=2, dilation=2),
        nn.ConvTranspose2d(16, 3, 2, stride=2),
    ).eval()
    compiled = torch.compile(model, backend="polyfuse", options={"freezing": True})
    agree(model, compiled, torch.randn(1, 16, 3, 2))
    assert rewritten == [0]


@pytest.mark.slow
def test_sizes_that_vary_stay(rewritten: list[int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2, stride=2)).eval()
    options = {"freezing": True}
    compiled = torch.compile(model, backend="polyfuse", options=options, dynamic=True)
    agree(model, compiled, torch.randn(1, 3, 8, 8))
    agree(model, compiled, torch.randn(2, 3, 9, 6))
    assert set(rewritten) == {0}


def test_a_batch_may_vary(rewritten: list[int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2, stride=2)).eval()
    torch._dynamo.reset()  # which would take other sizes for ones that vary, too
    compiled = torch.compile(model, backend="polyfuse", options={"freezing": True})
    x = torch.randn(6, 3, 8, 8)
    torch._dynamo.mark_dynamic(x, 0)
    agree(model, compiled, x)
    agree(model, compiled, torch.randn(3, 3, 8, 8))
    assert rewritten.pop() == 1


@pytest.mark.slow
def test_other_types_stay(rewritten: list[int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2, stride=2)).eval().double()
    compiled = torch.compile(model, backend="polyfuse", options={"freezing": True})
    agree(model, compiled, torch.randn(1, 3, 8, 8).double())
    assert set(rewritten) == {0}


def launches(layer: nn.Module) -> int:
    """Kernels of a frozen network that ends with a layer."""
    model, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), layer).eval(), torch.randn(1, 3, 7, 9)
    torch._dynamo.reset()
    reset_reports()
    agree(model, torch.compile(model, backend="polyfuse", options={"freezing": True}), x)
    return last_reports()[-1].kernels


def test_shuffled_pixels_of_few_channels_are_a_loop_behind_the_convolution() -> None:
    plain = launches(nn.Conv2d(16, 18, 3, padding=1))
    assert launches(nn.Sequential(nn.Conv2d(16, 18, 3, padding=1), nn.PixelShuffle(3))) == plain + 1


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_what_stands_for_one_where_there_is_no_library(dims: int, bias: bool) -> None:
    decomposed = without_libraries.without_libraries(images_later=False)[torch.ops.aten.convolution.default]
    x, added = torch.randn(2, 4, *[5, 3, 2][:dims]), torch.randn(6) if bias else None
    ones = [1] * dims
    for window, padding, more in (([2, 3, 1], [0, 0, 0], [0, 0, 0]), ([4, 5, 2], [1, 0, 1], [1, 2, 0])):
        weight, steps = torch.randn(4, 6, *window[:dims]), [2, 3, 1][:dims]
        args = x, weight, added, steps, padding[:dims], ones, True, more[:dims], 1
        torch.testing.assert_close(decomposed(*args), torch.ops.aten.convolution(*args), rtol=1e-4, atol=1e-5)
