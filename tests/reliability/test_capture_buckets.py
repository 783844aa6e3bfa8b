"""Graphs that DistributedDataParallel has cut into buckets are found by later processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from graph_caching import cache_of_its_own  # noqa: F401
from new_process import as_in_a_new_process
from polyfuse.cache.graphs import graph_counts
from requirements import GLOO, has_gloo
from world_of_one import world_of_one  # noqa: F401

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)

WIDTH = 300


class Net(nn.Module):
    """Three layers of 352 KiB each. Sizes: (rows, width) to the same, and a sum."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        if tied:
            self.layers[2].weight = self.layers[0].weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            # what crosses from bucket to bucket is a view, transposed
            x = nn.functional.gelu(layer(x)).t().sin().t()
        return x, x.sum()


def step(run: Callable[..., Any], model: nn.Module, rows: int = 3) -> list[Tensor]:
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    first, total = run(x)
    loss = first.square().sum() + total
    return [first, *torch.autograd.grad(loss, list(model.parameters()))]


def trained(model: nn.Module, rows: tuple[int, ...] = (3,), **options: Any) -> dict[str, int]:
    """What a further process finds of a network; its gradients are compared with eager mode's."""
    as_in_a_new_process()
    counters.clear()
    wrapped = DistributedDataParallel(model, **{"bucket_cap_mb": 1, **options})
    run = torch.compile(wrapped, backend="polyfuse")
    for number in rows:
        for _ in range(2):  # the first call of each bucket is one of torch's
            torch.testing.assert_close(step(run, model, number), step(model, model, number))
    found = graph_counts()
    traced = counters["stats"]["unique_graphs"]
    return {"hits": found.hits, "misses": found.misses, "bypasses": len(found.bypasses), "traced": traced}


@pytest.mark.quick(1)
@pytest.mark.parametrize("tied", (False, True))
def test_buckets_are_found(tied: bool) -> None:
    found = [trained(Net(tied)) for _ in range(2)]
    assert found[0]["misses"] > 1 and found[0]["bypasses"] == 0
    assert found[1] == {"hits": found[0]["misses"], "misses": 0, "bypasses": 0, "traced": 1}


@pytest.mark.slow
def test_buckets_of_a_function_that_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CAPTURE_CACHE", "1")
    first, second, larger, again = (trained(Net(), bucket_cap_mb=size) for size in (1, 1, 100, 1))
    assert (first["traced"], second["traced"], again["traced"]) == (1, 0, 0)
    assert second["hits"] == again["hits"] == first["misses"] > 1
    assert larger["traced"] == 1, "other limits of buckets may cut it elsewhere"


def test_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CAPTURE_CACHE", "1")
    model, x = Net(), torch.randn(3, WIDTH)
    for number in range(2):
        as_in_a_new_process()
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1)
        run = torch.compile(wrapped, backend="polyfuse")
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(run(x), model(x))
        assert bool(graph_counts().hits) == bool(number)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_buckets_whose_sizes_vary_are_compiled(count: int) -> None:
    """Nothing of them is stored, so that a second process compiles them, too."""
    for _ in range(count):
        found = trained(Net(), rows=(3, 5))
        assert found["bypasses"], graph_counts()
