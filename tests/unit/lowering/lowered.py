"""Run functions through capture, lowering and the reference interpreter, and compare with eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.base.settings import Settings
from polyfuse.frontend.capture import compile_graph
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.graph import Graph
from polyfuse.ir.interpreter.interpret import run_graph
from polyfuse.ir.text.parse import parse_graph
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_graph
from polyfuse.lowering import LoweringReport, lower_graph
from polyfuse.plugin import TargetInfo


@dataclass
class Lowered:
    """What came out of compiling one function."""

    graphs: list[Graph] = field(default_factory=list)
    traced: list[AtenGraph] = field(default_factory=list)
    report: LoweringReport = field(default_factory=LoweringReport)

    @property
    def graph(self) -> Graph:
        """The only graph."""
        (graph,) = self.graphs
        return graph

    def kinds(self) -> list[str]:
        """Classes of the nodes of the first graph, in order."""
        return [type(n).__name__ for n in self.graphs[0].nodes]


def compiled(
    fn: Callable[..., Any], *, dynamic: bool | None = False, target: TargetInfo | None = None, **options: Any
) -> tuple[Callable[..., Any], Lowered]:
    """`fn` compiled down to the interpreter for devices like `target`, and a record of its graphs."""
    torch._dynamo.reset()
    settings = Settings(**options)
    record = Lowered()

    def inner(graph: AtenGraph) -> Callable[[list[Any]], Sequence[Any]]:
        lowered = lower_graph(graph, settings, record.report, target_info=lambda _: target or TargetInfo())
        record.traced.append(graph)
        record.graphs.append(lowered)
        verify_graph(lowered)
        assert parse_graph(text(lowered)) == lowered

        def run(inputs: list[Any]) -> list[Any]:
            with torch.no_grad():
                return run_graph(lowered, inputs)

        return run

    def backend(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        return compile_graph(gm, example_inputs, inner=inner, settings=settings)

    return torch.compile(fn, backend=backend, dynamic=dynamic), record


def check(
    fn: Callable[..., Any],
    *args: Any,
    native: bool = True,
    dynamic: bool | None = False,
    exact: bool = False,
    layout: bool = True,
    target: TargetInfo | None = None,
    **options: Any,
) -> Lowered:
    """Compare `fn` with eager mode on copies of `args`: values, dtypes, strides, and what it does to its
    arguments.
    """
    mine = [a.clone() if isinstance(a, torch.Tensor) and not a.requires_grad else a for a in args]
    theirs = [a.clone() if isinstance(a, torch.Tensor) and not a.requires_grad else a for a in args]
    run, record = compiled(fn, dynamic=dynamic, target=target, **options)
    actual, expected = run(*mine), fn(*theirs)
    compare(actual, expected, exact=exact, layout=layout)
    compare(
        [a for a in mine if isinstance(a, torch.Tensor)], [a for a in theirs if isinstance(a, torch.Tensor)]
    )
    if native:
        assert not record.report.fallbacks, record.report.text()
    return record


def compare(actual: Any, expected: Any, *, exact: bool = False, layout: bool = True) -> None:
    """Equal structure, dtypes, and values within the default tolerances (or exactly)."""
    if isinstance(expected, torch.Tensor):
        options: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(actual, expected, equal_nan=True, **options)
        if layout:
            pairs = zip(expected.shape, actual.stride(), expected.stride(), strict=True)
            assert all(a == b for n, a, b in pairs if n > 1), (actual.stride(), expected.stride())
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            compare(a, b, exact=exact, layout=layout)
    elif isinstance(expected, dict):
        compare(list(actual.values()), list(expected.values()), exact=exact, layout=layout)
    else:
        assert actual == expected, (actual, expected)
