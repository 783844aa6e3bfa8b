"""Graphs that bypass the graph cache as they were captured are found by what was traced of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from graph_caching import cache_of_its_own  # noqa: F401
from new_process import as_in_a_new_process
from polyfuse.cache.graphs import graph_counts
from requirements import GLOO, has_gloo
from world_of_one import world_of_one  # noqa: F401

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)


class Net(nn.Module):
    """Sizes: (rows, 8) to the same."""

    def __init__(self, factor: float = 2.0, dtype: torch.dtype = torch.float32, bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(8, 8, bias=bias, dtype=dtype) for _ in range(2))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)) * self.factor)


def found(model: nn.Module, rows: int = 3, run: Callable[..., Any] | None = None, **options: Any) -> int:
    """How many graphs a further process finds; results and gradients are compared with eager mode's."""
    as_in_a_new_process()
    mesh = init_device_mesh("cpu", (1,))
    parallel = parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    compiled = torch.compile(parallel, backend="polyfuse", **options)
    x = torch.randn(rows, 8, dtype=model.up.weight.dtype)
    for _ in range(2):
        result, expected = compiled(x), parallel(x)
        torch.testing.assert_close(result, expected)
        given = list(parallel.parameters())
        grads = [torch.autograd.grad(y.square().sum(), given) for y in (result, expected)]
        torch.testing.assert_close(*([g.full_tensor() for g in each] for each in grads))
    counts = graph_counts()
    assert counts.bypasses and not counts.hits
    return counts.traced


@pytest.mark.slow
def test_a_parallel_network_is_lowered_once() -> None:
    # the first of a process may save another of two references to the mesh: torch remembers how it spread
    # tensors, and over which of them
    assert [found(Net(), rows) for rows in (5, 3, 3)] == [0, 0, 2]


CHANGES: dict[str, Callable[[], int]] = {
    "a number": lambda: found(Net(factor=3.0)),
    "an option": lambda: found(Net(), options={"numerics": "eager"}),
    "a type": lambda: found(Net(dtype=torch.float64)),
    "a bias": lambda: found(Net(bias=False)),
    "a size": lambda: found(Net(), rows=5),
}


@pytest.mark.parametrize(
    "names",
    [("a number", "an option"), pytest.param(tuple(CHANGES)[2:], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_what_differs_or_is_damaged_is_compiled(names: tuple[str, ...], tmp_path: Path) -> None:
    assert [found(Net(), 7), found(Net())] == [0, 0]
    for name in names:
        assert CHANGES[name]() == 0, name
    assert found(Net()) == 2
    for path in (tmp_path / "cache" / "compiled").glob("*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert found(Net()) == 0
    assert found(Net()) == 2


@pytest.mark.slow
def test_sizes_that_vary_are_compiled() -> None:
    for _ in range(2):
        assert found(Net(), dynamic=True) == 0


def test_without_the_graph_cache() -> None:
    for _ in range(2):
        as_in_a_new_process()
        mesh = init_device_mesh("cpu", (1,))
        model = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        run = torch.compile(model, backend="polyfuse", options={"graph_cache": False})
        run(torch.randn(3, 8))
        assert graph_counts().traced == 0
