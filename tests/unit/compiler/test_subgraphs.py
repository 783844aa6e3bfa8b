"""Functions that operators call are compiled: branches, loops, scans, regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.while_loop import while_loop

from called_functions import branch, branch_that_writes, loop, loop_that_writes, running
from polyfuse.compiler import subgraphs
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.runtime.subgraphs import DENSE, Subgraph

pytestmark = pytest.mark.usefixtures("interpreted_kernels")


def branch_in_branch(x: torch.Tensor) -> torch.Tensor:
    def deeper(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 1, lambda y: y.exp() + 1, lambda y: y.sin() + 2, (x * 2,))

    return torch.cond(x.sum() > 0, deeper, lambda x: x.cos() * 2, (x + 1,)) * 3


def rows(x: torch.Tensor) -> Any:
    return mapped(lambda row, factor: row.softmax(-1) * factor + 1, x, x[0].clone())


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1) + 1


def regions(x: torch.Tensor) -> torch.Tensor:
    return region(x) + region(x * 2)


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "branch": (branch, 2),
    "branch in branch": (branch_in_branch, 4),
    "loop": (loop, 2),
    "scan": (running, 1),
    "map": (rows, 1),
    "region": (regions, 1),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    reset_reports()


def compiled(
    function: Callable[..., Any], dynamic: bool = False, strict: bool = True, **more: Any
) -> Callable[..., Any]:
    # a stored graph, perhaps of another test, has no report of the functions that it calls
    options = {"strict": strict, "graph_cache": False, **more}
    return torch.compile(function, backend="polyfuse", fullgraph=True, dynamic=dynamic, options=options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, dynamic: bool) -> None:
    function, count = CASES[name]
    run = compiled(function, dynamic)
    for sign in (1, -1):
        x = torch.randn(6, 8).abs() * sign
        torch.testing.assert_close(run(x), function(x))
    if dynamic:
        x = torch.randn(5, 11)
        torch.testing.assert_close(run(x), function(x))
    reports = last_reports()
    assert len(reports) == count + 1 and not any(r.eager or r.fallbacks for r in reports)
    # each of them is in the report of what launches it, as a graph of its own
    assert all(r.kernels for r in reports[:-1])


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    function, _ = CASES[name]
    run = compiled(function)
    for sign in (1, -1):
        x = (torch.rand(6, 8) * sign).requires_grad_()
        found = [
            torch.autograd.grad(sum(r.square().sum() for r in _flat(f(x)) if r.requires_grad), x)
            for f in (run, function)
        ]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert any(r.kind == "backward" and r.kernels for r in last_reports())


def _flat(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", (branch_that_writes, loop_that_writes))
def test_operators_that_write_to_memory_of_the_function(function: Callable[..., Any]) -> None:
    run = compiled(function)
    for sign in (1, -1):
        x = torch.rand(6, 8) * sign
        before = x.clone()
        torch.testing.assert_close(run(x), function(x))
        assert torch.equal(x, before)
    reports = last_reports()
    assert len(reports) == 3 and not any(r.fallbacks for r in reports)


def test_arguments_that_lie_otherwise_are_copied() -> None:
    seen: list[tuple[int, ...]] = []

    def run(args: list[Any]) -> list[Any]:
        seen.extend(a.stride() for a in args if isinstance(a, torch.Tensor))
        return [args[0] + 1]

    x = torch.randn(3, 4)
    body = Subgraph(run, (((3, 4), (4, 1)), DENSE, None), single=True, name="body")
    torch.testing.assert_close(body(x.t().contiguous().t(), x.t(), 7), x + 1)
    assert seen == [(4, 1), (3, 1)]
    assert isinstance(Subgraph(run, (None,), single=False, name="body")(x), tuple)


def test_what_cannot_be_compiled_runs_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subgraphs, "mutated_placeholders", lambda module: ("x",))
    x = torch.randn(6, 8)
    torch.testing.assert_close(compiled(branch, strict=False)(x), branch(x))
    (report,) = last_reports()
    assert report.fallbacks == (("higher_order.cond", "a subgraph that it calls was not compiled"),)


@pytest.mark.slow
def test_sizes_that_only_the_outer_graph_knows() -> None:
    # the gradient of a loop reads what its forward stacked: as many as there were rounds
    x = torch.rand(6, 8, requires_grad=True)
    y = compiled(loop)(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(loop(x).sum(), x)[0], rtol=1e-4, atol=1e-5)
    reports = last_reports()
    assert "backward_0_0_while_loop_body_graph_1" in {r.name for r in reports}
    assert not any(r.fallbacks or r.eager for r in reports)


def scaled_by_size(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return torch.cond(x.sum() > 0, lambda x: x * n + torch.arange(n)[:, None], lambda x: x - n, (x,))


def repeated_by_size(x: torch.Tensor) -> Any:
    n, start = x.shape[0], torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 0.5 + torch.ones(n, 1) * n), (start, x))[1]


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", (scaled_by_size, repeated_by_size))
def test_sizes_of_the_outer_graph_in_subgraphs(function: Callable[..., Any]) -> None:
    run = compiled(function, dynamic=True)
    for rows in (6, 3):
        for sign in (1, -1):
            x = torch.rand(rows, 8) * sign
            torch.testing.assert_close(run(x), function(x))
    reports = last_reports()
    assert len(reports) == 3 and not any(r.fallbacks or r.eager for r in reports)
