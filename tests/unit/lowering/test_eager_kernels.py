"""Operators that eager mode computes faster are called: by size, by layout, and by who reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import check, compiled
from torch.nn import functional as F

from polyfuse.base.settings import Settings
from polyfuse.lowering.calls import eager_kernels
from polyfuse.lowering.calls.eager_kernels import Preferred, TracedCall, preferred
from polyfuse.plugin.lowering import Lowering

NAME = "aten.max_pool2d_with_indices_backward.default"


def gradient(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def of(x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(fn(x.requires_grad_()).square().sum(), x)
        return found

    return of


def images(count: int, last: bool = True) -> torch.Tensor:
    x = torch.randn(count, 5, 9, 8)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def calls(record: Any) -> list[str]:
    return [node.op for graph in record.graphs for node in graph.nodes if hasattr(node, "op")]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "count, last, window, called",
    [
        (3, True, (3, 2, 1), True),
        (3, True, (2, 2), False),  # no window overlaps another one
        (3, False, (3, 2, 1), False),
        (1, True, (3, 1, 1), False),
        (1, True, (5, 1, 2), True),
    ],
)
def test_gradients_of_max_pooling(count: int, last: bool, window: tuple[int, ...], called: bool) -> None:
    record = check(gradient(lambda x: F.max_pool2d(x, *window)), images(count, last))
    assert (NAME in calls(record)) == called
    assert [item.op for item in record.report.preferred] == ([NAME] if called else [])
    assert not record.report.fallbacks


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "last, window, called",
    [
        (True, 5, False),
        (True, (27, 1), True),
        (True, (13, 1), False),
        (True, (5, 6), False),
        (False, 7, False),
    ],
)
@pytest.mark.parametrize("positions", [False, True])
def test_max_pooling_of_large_windows(last: bool, window: Any, called: bool, positions: bool) -> None:
    name = "aten.max_pool2d_with_indices.default"
    padding = (window[0] // 2, 0) if window in ((13, 1), (27, 1)) else (2, 2)
    x = images(2, last)
    x[0, 0, 0, 0], x[1, 2, 3, 4] = float("nan"), float("-inf")
    record = check(lambda x: F.max_pool2d(x, window, 1, padding, return_indices=positions), x)
    assert (name in calls(record)) == called
    assert not record.report.fallbacks


def test_programs_without_libraries_call_nothing() -> None:
    record = check(gradient(lambda x: F.max_pool2d(x, 3, 2, 1)), images(3), gemm="generated")
    assert NAME not in calls(record)


def test_sizes_are_not_guarded() -> None:
    fn, record = compiled(gradient(lambda x: F.max_pool2d(x, 3, 2, 1)), dynamic=True)
    for count in (3, 4, 2):
        x = images(count)
        torch.testing.assert_close(fn(x), gradient(lambda x: F.max_pool2d(x, 3, 2, 1))(x))
    assert calls(record).count(NAME) == 1


def test_fusing_is_weighed_against_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's result is written and read again; so is what it reads of a pointwise operator."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.exp.default, (x,))
    node = graph.call_function(torch.ops.aten.flip.default, (made, [1]))
    user = graph.call_function(torch.ops.aten.neg.default, (node,))
    for item in (x, made, node, user):
        item.meta["val"] = torch.randn(4, 6)
    name, own = "aten.flip.default", Lowering(lambda ctx, node: None)
    seen: list[TracedCall] = []

    def decide(saved: float, rows: dict[Any, Lowering | None], row: Lowering = own) -> bool:
        def rule(traced: TracedCall) -> Preferred:
            seen.append(traced)
            return Preferred("it is", saved)

        monkeypatch.setattr(eager_kernels, "RULES", {name: rule})
        return preferred(node, row, rows, None, Settings()) is not None

    fused, stored = {user: own}, {user: Lowering(own.function, library=True)}
    assert [decide(saved, fused) for saved in (3.9, 4.1)] == [False, True]
    assert [decide(saved, stored) for saved in (1.9, 2.1)] == [False, True]
    assert [decide(saved, fused, Lowering(own.function, stores=(0,))) for saved in (1.9, 2.1)] == [
        False,
        True,
    ]
    assert (
        seen[0].sizes(seen[0].result) == (4, 6) and seen[0].argument(1) == [1] and seen[0].argument(7) is None
    )
