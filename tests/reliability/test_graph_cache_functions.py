"""Graphs in the graph cache that call functions or operators of the user's, or whose inputs share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from called_functions import branch, branch_that_writes, loop, running
from graph_caching import again, cache_of_its_own, check, compiled, differentiated  # noqa: F401
from new_process import as_in_a_new_process
from polyfuse.cache.graphs import graph_counts

FACTOR = 2.0


def _scaled(gradient: torch.Tensor) -> torch.Tensor:
    return torch.mul(gradient, FACTOR)


@pytest.fixture
def twice() -> Iterator[Any]:
    """An operator of the user's, with a gradient that calls a function and reads a number."""

    @torch.library.custom_op("polyfuse_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, gradient: _scaled(gradient))
    yield twice
    twice._lib._destroy()


def test_operators_of_others(twice, monkeypatch):
    x = torch.randn(4, requires_grad=True)
    for hits in (0, 1):
        counts = differentiated(lambda x: twice(x) + 1, x)
        assert (counts.hits, dict(counts.bypasses)) == (hits, {})
    # the gradient is part of what was compiled, the operator's kernel is called as it is
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    assert differentiated(lambda x: twice(x) + 1, x).misses == 1


def test_operators_of_others_whose_tracing_is_not_known(twice):
    added = torch.zeros(4)
    twice.register_autograd(lambda ctx, gradient: gradient + added)
    counts = again(lambda x: twice(x) + 1, torch.randn(4))
    assert ["a Tensor has no text" in reason for reason in counts.bypasses] == [True]


def by_policy(policy: Any, x: torch.Tensor) -> torch.Tensor:
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False, context_fn=contexts)


SAVED = CheckpointPolicy.MUST_SAVE


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return SAVED if op is torch.ops.aten.sin.default else CheckpointPolicy.PREFER_RECOMPUTE


def test_checkpoints_that_save_by_a_policy(monkeypatch):
    x = torch.randn(4, requires_grad=True)
    for hits in (0, 1):
        assert differentiated(partial(by_policy, policy), x).hits == hits
    monkeypatch.setattr(f"{__name__}.SAVED", CheckpointPolicy.MUST_RECOMPUTE)
    assert differentiated(partial(by_policy, policy), x).misses == 1
    assert differentiated(partial(by_policy, [torch.ops.aten.sin.default]), x).misses == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [branch, loop, running, branch_that_writes])
def test_compiled_functions_that_operators_call(function):
    check(function, torch.randn(6, 6))


def test_branches_that_differ_are_distinguished():
    def branching(factor: float, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * factor, torch.cos, (x,))

    for factor in (2.0, 3.0):
        assert again(partial(branching, factor), torch.ones(4)).misses == 1


def _pair(first: slice, second: slice) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(12.0)
    return base[first], base[second]


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2 + x.sum()


MEMORY: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "disjoint": lambda: _pair(slice(0, 6), slice(6, 12)),
    "overlapping": lambda: _pair(slice(0, 6), slice(3, 9)),
    "apart": lambda: (torch.arange(6.0), torch.arange(6.0)),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [torch.add, _written])
def test_inputs_that_share_memory(function):
    for hits in (0, 1):
        for make in MEMORY.values():
            as_in_a_new_process()
            mine, theirs = make(), make()
            result = compiled(function, *mine, strict=False)
            torch.testing.assert_close((result, *mine), (function(*theirs), *theirs))
            assert (graph_counts().hits, graph_counts().misses) == (hits, 1 - hits)


def test_a_graph_with_guards_on_shared_memory_is_not_stored():
    for _ in range(2):
        as_in_a_new_process()
        compiled(_written, *MEMORY["disjoint"](), dynamic=True)
        assert ["share memory" in reason for reason in graph_counts().bypasses] == [True]
