"""Convolutions along one axis and over three compute what eager mode does, in generated kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports
from requirements import needs_vectors

pytestmark = [
    needs_vectors,
    pytest.mark.usefixtures("fresh_sessions", "packed_once"),
]
PACKS = "checked.aten.as_strided_copy.default"
INF, NAN = float("inf"), float("nan")


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model.eval(), backend="polyfuse", options={"strict": True}, **options)


def layer_is_infinite(model: nn.Module) -> bool:
    return not all(bool(p.isfinite().all()) for p in model.parameters())


def agrees(call: Any, model: nn.Module, x: torch.Tensor, calls: tuple[str, ...] = (PACKS,)) -> None:
    """The same numbers at the same indices as eager mode, by these calls of libraries alone."""
    with torch.no_grad():
        found, expected = call(x), model(x)
    # where torch multiplies what is beyond the border with an infinite weight, it finds no number
    expected = torch.where(expected.isnan() & layer_is_infinite(model), found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert found.stride() == expected.stride()
    assert {name.replace("together.", "") for name in last_reports()[-1].calls} == set(calls)


def agrees_on_all(call: Any, model: nn.Module, layer: Any, x: torch.Tensor) -> None:
    """Also where pixels and weights are no numbers, and after weights change."""
    agrees(call, model, x)
    bad = x.clone()
    flat = bad.view(bad.shape[0], bad.shape[1], -1)
    flat[0, 0, 1], flat[-1, -1, 0], flat[-1, 0, -1] = NAN, INF, -INF
    agrees(call, model, bad)
    with torch.no_grad():
        weight = layer.weight.view(*layer.weight.shape[:2], -1)
        weight[0, 0, 0], weight[1, -1, -1], weight[2, 0, -1] = INF, NAN, -INF
    agrees(call, model, x)
    agrees(call, model, bad)
    layer.weight.data.normal_()
    agrees(call, model, x)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv1d(8, 16, 3, padding=1), (2, 8, 20)),
        (nn.Conv2d(16, 16, 5, padding=2), (1, 16, 9, 9)),
        (nn.Conv1d(512, 40, 3, padding=1), (2, 512, 7)),
        (nn.Conv1d(8, 16, 3, padding=1), (1, 8, 100)),
    ],
    ids=["line", "image", "several passes", "a narrow block"],
)
def test_infinite_weights_do_not_count_beyond_the_border(layer: Any, size: Any) -> None:
    """A result with its channels second has its pixels along the lanes, with zeros beyond the border."""
    with torch.no_grad():
        layer.weight.flatten()[0] = layer.weight.flatten()[-1] = INF
        x = torch.rand(size) + 0.1
        found = torch.compile(nn.Sequential(layer, nn.ReLU()).eval(), backend="polyfuse")(x * 2)
        beyond = layer.weight.isinf().flatten(1).any(1)
    assert not found.isnan().any()
    assert found[:, beyond].isinf().any()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv1d(12, 32, 3, padding=1), (2, 12, 60)),
        (nn.Conv1d(1, 32, 80, stride=4, padding=40), (2, 1, 700)),
        (nn.Conv1d(16, 64, 2, dilation=8, bias=False), (2, 16, 77)),
        (nn.Conv1d(7, 16, 5, stride=2, padding=3), (3, 7, 91)),
    ],
    ids=["plain", "one channel", "dilation", "stride"],
)
def test_along_one_axis(layer: nn.Conv1d, size: tuple[int, ...]) -> None:
    model = nn.Sequential(layer, nn.BatchNorm1d(layer.out_channels), nn.ReLU6())
    agrees_on_all(compiled(model), model, layer, torch.randn(size))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv1d(12, 12, 9, padding=4, groups=12), (2, 12, 60)),
        (nn.Conv1d(9, 9, 31, padding=15, groups=9, bias=False), (2, 9, 70)),
        (nn.Conv1d(16, 16, 4, padding=3, groups=16), (1, 16, 40)),
        (nn.Conv1d(8, 8, 5, padding=8, dilation=4, groups=8), (3, 8, 37)),
        (nn.Conv1d(8, 8, 3, stride=2, padding=1, groups=8), (3, 8, 75)),
    ],
    ids=["plain", "wide", "causal", "dilation", "stride"],
)
def test_depthwise_along_one_axis(layer: nn.Conv1d, size: tuple[int, ...]) -> None:
    model, x = nn.Sequential(layer, nn.GELU()), torch.randn(size)
    agrees(compiled(model), model, x, ())
    x[0, 0, 1], x[-1, -1, 0] = NAN, INF
    with torch.no_grad():
        layer.weight[0, 0, 0], layer.weight[1, 0, -1] = INF, NAN
    agrees(compiled(model), model, x, ())
    narrow, y = model.bfloat16(), torch.randn(size).bfloat16()
    with torch.no_grad():
        layer.weight.normal_()
        expected = model.double()(y.double())
        found = torch.compile(narrow.bfloat16(), backend="polyfuse", options={"strict": True})(y)
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=5e-2)


def test_depthwise_along_one_axis_of_what_lies_across() -> None:
    """Tokens by channels, as layers of a Conformer and of Mamba have them, in any number."""
    layer = nn.Conv1d(24, 24, 7, padding=3, groups=24)

    def run(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(layer(x.transpose(1, 2))).transpose(1, 2)

    x = torch.randn(2, 40, 24)
    for dynamic, count in ((False, 2), (True, 2)):
        call = torch.compile(run, backend="polyfuse", dynamic=dynamic, options={"strict": True})
        with torch.no_grad():
            torch.testing.assert_close(call(x), run(x), rtol=1e-4, atol=1e-4)
        report = last_reports()[-1]
        assert not report.calls and report.kernels == count  # lines laid out, then all
    with torch.no_grad():
        torch.testing.assert_close(call(x[:, :21]), run(x[:, :21]), rtol=1e-4, atol=1e-4)


def test_of_a_causal_convolution_what_is_read_is_computed() -> None:
    layer, x = nn.Conv1d(8, 8, 4, padding=3, groups=8), torch.randn(2, 8, 40)

    def run(x: torch.Tensor, first: int, end: int) -> torch.Tensor:
        y = layer(x)[..., first:end]
        return nn.functional.silu(y) + y

    for first, end in ((0, 40), (2, 43), (0, 43)):
        call = torch.compile(run, backend="polyfuse", dynamic=False, options={"strict": True})
        with torch.no_grad():
            torch.testing.assert_close(call(x, first, end), run(x, first, end), rtol=1e-4, atol=1e-4)
        report = last_reports()[-1]
        assert not report.calls and report.kernels == (1 if first == 0 else 2)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "length", "reason"),
    [
        (nn.Conv1d(8, 8, 40, groups=8), 60, "its window is too large"),
        (nn.Conv1d(8, 8, 3, groups=8), 9, "its lines are short"),
        (nn.Conv1d(8, 8, 3, groups=4), 60, "it is not depthwise"),
    ],
)
def test_depthwise_along_one_axis_that_is_the_librarys(layer: nn.Conv1d, length: int, reason: str) -> None:
    agrees(compiled(layer), layer, torch.randn(1, 8, length), ("aten.convolution.default",))
    assert reason in {d.reason for d in last_reports()[-1].decisions if d.second == "cpp"}


@pytest.mark.slow
def test_groups_along_one_axis_behind_another_layer() -> None:
    model = nn.Sequential(
        nn.Conv1d(3, 32, 3), nn.Conv1d(32, 64, 3, padding=2, dilation=2, groups=2), nn.ELU()
    )
    agrees(compiled(model), model, torch.randn(2, 3, 70))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv3d(12, 32, 3, padding=1), (2, 12, 3, 7, 18)),
        (nn.Conv3d(3, 32, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3)), (2, 3, 4, 31, 40)),
        (nn.Conv3d(40, 32, 3, bias=False), (1, 40, 5, 6, 30)),
        (nn.Conv3d(96, 32, 3, padding=1), (1, 96, 1, 5, 16)),
        (nn.Conv3d(130, 16, 3, padding=1), (1, 130, 2, 4, 30)),
        (
            nn.Conv3d(8, 16, (2, 3, 3), stride=(2, 1, 2), padding=(1, 0, 2), dilation=(1, 2, 1)),
            (2, 8, 5, 9, 60),
        ),
        (nn.Conv3d(8, 32, (1, 3, 3), padding=(4, 1, 1)), (1, 8, 2, 5, 30)),
        (nn.Conv3d(20, 48, 1), (2, 20, 3, 5, 6)),
    ],
    ids=["plain", "stem", "no border", "one image", "planes in passes", "uneven", "far border", "1x1x1"],
)
def test_over_space_and_time(layer: nn.Conv3d, size: tuple[int, ...]) -> None:
    model = nn.Sequential(layer, nn.BatchNorm3d(layer.out_channels), nn.ReLU6())
    call, x = compiled(model), torch.randn(size)
    if all(n == 1 for n in layer.kernel_size):
        agrees(call, model, x, ())
        return
    agrees_on_all(call, model, layer, x)


def test_sizes_of_any_number() -> None:
    along = nn.Sequential(nn.Conv1d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 16, 3))
    call = compiled(along, dynamic=True)
    for size in ((2, 3, 50), (5, 3, 81)):
        agrees(call, along, torch.randn(size))


@pytest.mark.slow  # three axes are one loop more than the one axis above
def test_space_and_time_of_any_size() -> None:
    over = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, 3, stride=2, padding=1))
    call = compiled(over, dynamic=True)
    for size in ((1, 3, 4, 9, 20), (2, 3, 2, 17, 16), (1, 3, 5, 40, 33)):
        agrees(call, over, torch.randn(size))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_few_pixels_pack_their_weight_at_each_call(axes: int) -> None:
    """Looking whether a small packed weight has changed would take longer, and the copy its memory."""
    model = (nn.Conv1d if axes == 1 else nn.Conv2d)(64, 32, 3, padding=1)
    large = (nn.Conv1d if axes == 1 else nn.Conv2d)(128, 192, 3, padding=1)
    x = torch.randn(1, 64, 15) if axes == 1 else torch.randn(1, 64, 5, 5)
    agrees(compiled(large), large, x.repeat(1, 2, *(1,) * axes))
    call = compiled(model)
    agrees(call, model, x, ())
    with torch.no_grad():
        model.weight[3, 2, -1] = INF
    agrees(call, model, x, ())


@pytest.mark.slow
def test_what_learns_convolves_as_it_is_written() -> None:
    model = nn.Sequential(nn.Conv1d(3, 16, 3), nn.ReLU(), nn.Conv1d(16, 8, 3, padding=1))
    call, x = torch.compile(model, backend="polyfuse", options={"strict": True}), torch.randn(2, 3, 60)
    call(x).square().mean().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_what_is_computed_from_features_by_frames(groups: int, dynamic: bool) -> None:
    """A sequence whose features lie side by side has a result that lies so, too, once it is an image."""
    first, second = nn.Conv1d(16, 32, 3, stride=2), nn.Conv1d(32, 32, 4, padding=2, groups=groups)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        frames = torch.tanh(first(x)).transpose(1, 2).contiguous()
        y = second(frames.transpose(1, 2))
        rows = y.as_strided((y.size(0), 9), (y.stride(0), y.stride(2)), 5)
        return y[:, :, :-1], y.flatten(1), y.transpose(1, 2).reshape(-1), y.unfold(2, 3, 2), rows, y, y * 2

    call = torch.compile(model, backend="polyfuse", options={"strict": True}, dynamic=dynamic)
    for length in (60, 159):
        x = torch.randn(2, 16, length)
        with torch.no_grad():
            for found, expected in zip(call(x), model(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
                assert found.stride() == expected.stride()
