"""Convolutions with their channels last: what is laid out so, what stays, and that nobody can tell."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.base.settings import Settings
from polyfuse.frontend.capture import compile_graph
from polyfuse.frontend.graph import AtenGraph, ChannelsLast

F = torch.nn.functional
aten = torch.ops.aten


class LastInner:
    """Interprets graphs of which every convolution wants its channels last, and keeps them."""

    def __init__(self, wanted: ChannelsLast = ChannelsLast.ACTIVATIONS) -> None:
        self.graphs: list[AtenGraph] = []
        self.wanted = wanted

    def __call__(self, graph: AtenGraph) -> Any:
        self.graphs.append(graph)
        return torch.fx.Interpreter(graph.module).boxed_run

    def compile(self, function: Any, **options: Any) -> Any:
        def backend(gm: Any, inputs: Any) -> Any:
            return compile_graph(
                gm, inputs, inner=self, settings=Settings(), channels_last=lambda *_: self.wanted
            )

        return torch.compile(function, backend=backend, **options)

    def kinds(self) -> list[str]:
        return [graph.kind for graph in self.graphs]


def convolutions(graph: AtenGraph, *, weights: bool = False) -> list[tuple[bool, ...]]:
    """Of each convolution, and gradient of one: which of its activations have their channels last, and
    whether its weight has.
    """
    found = []
    for node in graph.module.graph.nodes:
        count = {aten.convolution.default: 1, aten.convolution_backward.default: 2}.get(node.target, 0)
        count += weights and count > 0
        values = [node.args[i].meta["val"] for i in range(count)]
        if values:
            # of sizes that are not known, torch 2.11 cannot say `is_contiguous(memory_format=...)`
            found.append(tuple(bool(v.stride(1) == 1) for v in values))
    return found


def check(
    model: Callable[..., Any],
    *inputs: torch.Tensor,
    wanted: ChannelsLast = ChannelsLast.ACTIVATIONS,
    **options: Any,
) -> LastInner:
    inner = LastInner(wanted)
    mine, theirs = ([i.detach().clone() for i in inputs] for _ in range(2))
    with torch.no_grad():
        torch.manual_seed(1)
        actual = inner.compile(model, **options)(*mine)
        torch.manual_seed(1)
        expected = model(*theirs)
    for a, e in zip(_flat((actual, *mine)), _flat((expected, *theirs)), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)
        assert [s for n, s in zip(a.shape, a.stride(), strict=True) if n > 1] == [
            s for n, s in zip(e.shape, e.stride(), strict=True) if n > 1
        ]
    return inner


def _flat(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [t for value in values for t in _flat(value)]


X, W, V = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(6, 4, 3, 3)


def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
    y = F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2)
    z = torch.cat([F.conv2d(y, v, padding=1), F.interpolate(y, scale_factor=1)], 1)
    return z, F.conv_transpose2d(z[:, :6], v, stride=2), F.adaptive_avg_pool2d(z, 1).flatten(1)


def test_what_lies_between_convolutions_takes_their_layout() -> None:
    graph = check(block, torch.randn(2, 3, 32, 32), W, V).graphs[0]
    assert convolutions(graph) == [(True,)] * 3
    formats = [n for n in graph.module.graph.nodes if n.target is aten.clone.default]
    # the image, some channels of what is returned, and two results as the caller expects them
    assert len(formats) <= 4


def test_weights_are_laid_out_once() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w).relu(), w)

    graph = check(twice, X, torch.randn(3, 3, 3, 3), wanted=ChannelsLast.ALL).graphs[0]
    assert convolutions(graph, weights=True) == [(True, True)] * 2
    clones = [n.args[0] for n in graph.module.graph.nodes if n.target is aten.clone.default]
    assert len(clones) == len(set(clones))


@pytest.mark.quick(1)
@pytest.mark.parametrize("wanted", [ChannelsLast.ACTIVATIONS, ChannelsLast.ALL])
@pytest.mark.parametrize("dynamic", [False, True])
def test_training(dynamic: bool, wanted: ChannelsLast) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.Flatten(),
    )
    reference, inner = copy.deepcopy(model), LastInner(wanted)
    run = inner.compile(model, dynamic=dynamic)
    for batch in (2, 3) if dynamic else (2,):
        x = torch.randn(batch, 3, 9, 9)
        for trained, call in ((model, run), (reference, reference)):
            trained.zero_grad()
            call(x).square().mean().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        assert mine.grad is not None and mine.grad.is_contiguous()
    torch.testing.assert_close(list(model.buffers()), list(reference.buffers()))
    assert inner.kinds() == ["forward", "backward"]
    assert convolutions(inner.graphs[0]) == [(True,)] * 2
    assert convolutions(inner.graphs[1]) == [(True, True)] * 2
    if wanted is ChannelsLast.ALL:
        assert convolutions(inner.graphs[0], weights=True) == [(True, True)] * 2
        assert convolutions(inner.graphs[1], weights=True) == [(True, True, True)] * 2


STRIDES_MATTER: dict[str, Callable[..., Any]] = {
    "a view that such strides do not allow": lambda x, w, v: F.conv2d(x, w).view(2, 24, 6) * 2,
    "elements by address": lambda x, w, v: F.conv2d(x, w).as_strided((2, 5), (7, 3), 4) + 1,
    "random numbers in memory order": lambda x, w, v: F.conv2d(x, w) + torch.rand_like(F.conv2d(x, w)),
    "dropout": lambda x, w, v: F.dropout(F.conv2d(x, w), 0.5),
    "a view is returned": lambda x, w, v: (y := F.conv2d(x, w), y[:, 1:3], y.permute(0, 2, 3, 1)),
    "a strided result": lambda x, w, v: F.conv2d(x, w).transpose(1, 3).sin(),
    "written back": lambda x, w, v: x.copy_(F.conv2d(x, w, padding=1)[:, :3]).sum(),
    "complex numbers": lambda x, w, v: torch.view_as_complex(F.conv2d(x, w).view(2, 4, 18, 2)).abs(),
    "sorted": lambda x, w, v: F.conv2d(x, w).flatten(1).sort(1),
    "data decide": lambda x, w, v: F.conv2d(x, w)[F.conv2d(x, w) > 0],
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", STRIDES_MATTER)
def test_nobody_can_tell(name: str) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph = check(STRIDES_MATTER[name], X, W, V).graphs[0]
    assert (True,) in convolutions(graph)


def test_tensors_that_have_their_channels_last_are_not_converted() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w).sin()

    inner = LastInner()
    x = X.to(memory_format=torch.channels_last)
    assert torch.equal(inner.compile(fn)(x, W), fn(x, W))
    calls = [n.target for n in inner.graphs[0].module.graph.nodes if n.op == "call_function"]
    assert calls == [aten.convolution.default, aten.sin.default]


def test_volumes() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv3d(F.conv3d(x, w, padding=1).relu(), w)

    inner = check(fn, torch.randn(2, 3, 5, 6, 7), torch.randn(3, 3, 3, 3, 3))
    assert convolutions(inner.graphs[0]) == [(True,)] * 2


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sequences_are_images_of_one_line(dynamic: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        inner = F.conv1d(x, w, stride=2, padding=3, dilation=2).relu()
        return F.conv1d(F.max_pool1d(inner, 2), w)

    inner = check(fn, torch.randn(2, 3, 40), torch.randn(3, 3, 3), dynamic=dynamic)
    assert convolutions(inner.graphs[0]) == [(True,)] * 2
    targets = [n.target for n in inner.graphs[0].module.graph.nodes]
    # the first operand, and the result
    assert targets.count(aten.clone.default) == 2


def test_an_image_of_one_channel_is_convolved_to_channels_that_come_last() -> None:
    """Such an image lies either way, and torch then takes it for one whose channels come second."""

    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.max_pool2d(F.conv2d(x, w).relu(), 2), v)

    inner = check(fn, torch.randn(2, 1, 9, 9), torch.randn(4, 1, 3, 3), torch.randn(4, 4, 3, 3))
    nodes = inner.graphs[0].module.graph.nodes
    pooled = next(n for n in nodes if n.target is aten.max_pool2d_with_indices.default).args[0]
    assert pooled.meta["val"].stride(1) == 1


@pytest.mark.slow
def test_unknown_sizes() -> None:
    assert convolutions(check(block, X, W, V, dynamic=True).graphs[0]) == [(True,)] * 3


UNCHANGED: dict[str, Callable[..., Any]] = {
    "each channel for itself": lambda x, w: F.conv2d(x, w[:3, :1], groups=3),
    "transposed sequences": lambda x, w: F.conv_transpose1d(x[:, :, 0], w[:3, :, 0]),
    "no convolution": lambda x, w: x.sin(),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_gains_nothing_stays(name: str) -> None:
    inner = check(UNCHANGED[name], X, W)
    assert not any(n.target is aten.clone.default for n in inner.graphs[0].module.graph.nodes)


def test_devices_that_do_not_want_it_are_left_alone() -> None:
    assert convolutions(check(block, X, W, V, wanted=ChannelsLast.NONE).graphs[0])[0] == (False,)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("channels", "function", "stays"),
    [
        (3, F.conv2d, True),
        (3, lambda x, w: F.conv2d(x, w).relu(), False),
        (3, lambda x, w: F.conv2d(x.tanh(), w), False),
        (3, lambda x, w: F.conv2d(x[:, :, :-1], w), False),
        (32, F.conv2d, False),
    ],
    ids=["alone", "activation", "made here", "few pixels", "heavy"],
)
def test_a_light_convolution_alone_stays_as_it_was_traced(
    channels: int, function: Callable[..., torch.Tensor], stays: bool
) -> None:
    x, w = torch.randn(1, channels, 34, 34), torch.randn(channels, channels, 3, 3)
    (graph,) = check(function, x, w).graphs
    assert convolutions(graph) == [(not stays,)]


def test_varying_sizes_are_not_judged_light() -> None:
    (graph,) = check(F.conv2d, torch.randn(2, 3, 34, 34), torch.randn(3, 3, 3, 3), dynamic=True).graphs
    assert convolutions(graph) == [(True,)]
