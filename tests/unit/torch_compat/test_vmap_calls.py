"""Plain calls of `vmap` leave the graph that torch's own code leaves, and all others are left to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.variables import higher_order_ops
from torch._higher_order_ops.associative_scan import associative_scan

from polyfuse.torch_compat.captures.shortcuts import shortcuts

X, Y, Z = torch.randn(3, 4, 5), torch.randn(3, 4, 5), torch.randn(4, 3, 5)


def _pair(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def _caught(x: torch.Tensor) -> torch.Tensor:
    def refuse(row: torch.Tensor) -> torch.Tensor:
        row = row.sin()
        if row.dim() == 2:
            raise KeyError("planted")
        return row

    try:
        return torch.vmap(refuse)(x)
    except KeyError:
        return x.cos()


class _Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


PLAIN: dict[str, Callable[[], Any]] = {
    "one": lambda: torch.vmap(torch.sin)(X),
    "pairs": lambda: torch.vmap(_pair)((X, Y), (Y, X)),
    "nested dimensions": lambda: torch.vmap(_pair, in_dims=((0, 0), (0, 1)))((X, Y), (Y, Z)),
    "an output dimension": lambda: torch.vmap(torch.mul, in_dims=(0, 1), out_dims=1)(X, Z),
    "two levels": lambda: torch.vmap(torch.vmap(torch.dot))(X, Y),
    "named arguments": lambda: torch.vmap(torch.add)(X, Y, alpha=3),
    "results in tuples": lambda: torch.vmap(lambda x: (x, (x.exp(), x + 1)))(X),
    "a module": lambda: torch.vmap(_Double())(X),
    "an error that is caught": lambda: _caught(X),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "not mapped": lambda: torch.vmap(torch.add, in_dims=(0, None))(X, Y[0]),
    "from the end": lambda: torch.vmap(torch.sin, in_dims=-1, out_dims=-1)(X),
    "chunks": lambda: torch.vmap(torch.sin, chunk_size=2)(X),
    "dictionaries": lambda: torch.vmap(lambda d: d["x"] + 1)({"x": X}),
    "lists": lambda: torch.vmap(lambda pair: pair[0] + pair[1])([X, Y]),
    "output dimensions": lambda: torch.vmap(lambda x: (x, x + 1), out_dims=(0, 1))(X),
    "results in dictionaries": lambda: torch.vmap(lambda x: {"sin": x.sin()})(X),
}


def _traced(call: Callable[[], Any], inside: Any) -> tuple[list[Any], Any]:
    """The operations of the graphs that Dynamo makes of a function, without their names; and its result."""
    torch._dynamo.reset()
    graphs = []

    def keep(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        numbers = {node: number for number, node in enumerate(graph.graph.nodes)}
        for node in graph.graph.nodes:
            arguments = torch.fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
            graphs.append((node.op, "" if node.op in ("placeholder", "output") else node.target, arguments))
        return graph

    with inside:
        found = torch.compile(call, backend=keep, fullgraph=True)()
    return graphs, found


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_the_graph_and_the_result_are_the_same(name: str) -> None:
    call = (PLAIN | OTHERS)[name]
    expected, _ = _traced(call, nullcontext())
    found, result = _traced(call, shortcuts())
    assert found == expected
    torch.testing.assert_close(result, call())


@pytest.mark.parametrize(("calls", "inlined"), [(PLAIN, False), (OTHERS, True)])
def test_only_plain_calls_are_not_inlined(
    calls: dict[str, Callable[[], Any]], inlined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    kind = higher_order_ops.FunctorchHigherOrderVariable
    inline: Any = kind.call_function

    def noted(self: Any, *args: Any) -> Any:
        seen.append(self.fn)
        return inline(self, *args)

    monkeypatch.setattr(kind, "call_function", noted)
    results = {"results in dictionaries", "output dimensions"}
    for name, call in calls.items():
        seen.clear()
        _traced(call, shortcuts())
        if name not in results:
            assert bool(seen) == inlined, name


def test_a_scan_of_pairs_leaves_the_same_graph() -> None:
    def scanned() -> Any:
        return associative_scan(_pair, (X, Y), dim=1, combine_mode="generic")

    expected, _ = _traced(scanned, nullcontext())
    found, result = _traced(scanned, shortcuts())
    assert found == expected
    torch.testing.assert_close(result, scanned())


def test_sizes_that_differ_are_refused_as_by_torch() -> None:
    def call() -> Any:
        try:
            return torch.vmap(torch.mul)(X, Z)
        except ValueError:
            return X + 1

    _, result = _traced(call, shortcuts())
    torch.testing.assert_close(result, X + 1)


def test_sizes_that_vary_are_left_to_torch() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.sin)(x)

    torch._dynamo.reset()
    compiled = torch.compile(rows, backend="eager", dynamic=True, fullgraph=True)
    with shortcuts():
        for n in (5, 7, 1):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), rows(x))


def test_another_depth_of_levels_is_another_graph() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.sin)(x)

    torch._dynamo.reset()
    with shortcuts():
        compiled = torch.compile(rows, backend="eager")
        torch.testing.assert_close(compiled(X), rows(X))
        torch.testing.assert_close(torch.vmap(compiled)(X), torch.vmap(rows)(X))
        torch.testing.assert_close(compiled(X), rows(X))
