"""Compiles functions as successive processes would; says what became of their graphs in the graph cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from new_process import as_in_a_new_process
from polyfuse.cache.graphs import GraphCounts, graph_counts


@pytest.fixture(autouse=True)
def cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test of a module that imports this is a new process, with an empty graph cache."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "1")
    monkeypatch.setenv("POLYFUSE_BACKENDS", "interpreter")  # whose kernels nobody compiles
    as_in_a_new_process()
    yield
    as_in_a_new_process()


@pytest.fixture
def built_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are those of the backends that are asked outside of tests."""
    monkeypatch.delenv("POLYFUSE_BACKENDS")


def compiled(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a compiled function returns."""
    dynamic = options.pop("dynamic", None)
    options = {"strict": True, **options}
    return torch.compile(function, backend="polyfuse", options=options, dynamic=dynamic)(*args)


def again(function: Callable[..., Any], *args: Any, **options: Any) -> GraphCounts:
    """What becomes of the graph of a function in a further process; the result is checked."""
    as_in_a_new_process()
    torch.testing.assert_close(compiled(function, *args, **options), function(*args), equal_nan=True)
    return graph_counts()


def check(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    """A first process keeps the graph, a second one finds it."""
    first, second = again(function, *args, **options), again(function, *args, **options)
    assert (first.hits, first.misses, first.bypasses) == (0, 1, {})
    assert (second.hits, second.misses, second.bypasses) == (1, 0, {})


def differentiated(function: Callable[..., Any], *args: Any, **options: Any) -> GraphCounts:
    """What becomes of a graph and of its backward in a further process; gradients are checked."""
    as_in_a_new_process()
    found = torch.autograd.grad(compiled(function, *args, **options).sum(), args)
    expected = torch.autograd.grad(function(*args).sum(), args)
    torch.testing.assert_close(found, expected)
    return graph_counts()
