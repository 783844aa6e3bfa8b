"""An inner compiler that runs graphs in eager mode: what the frontend does can be tested without the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.frontend.capture import compile_graph
from polyfuse.frontend.graph import AtenGraph


class EagerInner:
    """Interprets each graph, and keeps it for a test to look at."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.graphs: list[AtenGraph] = []
        self.settings = settings or Settings()

    def __call__(self, graph: AtenGraph) -> Any:
        self.graphs.append(graph)
        interpreter = torch.fx.Interpreter(graph.module)

        def run(args: list[Any]) -> Any:
            assert isinstance(args, list)
            return interpreter.boxed_run(args)

        return run

    def backend(self, gm: Any, inputs: Any, **_: Any) -> Any:
        return compile_graph(gm, inputs, inner=self, settings=self.settings)

    def compile(self, function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=self.backend, **options)

    def kinds(self) -> list[str]:
        return [g.kind for g in self.graphs]

    def ops(self, index: int = 0) -> list[str]:
        nodes = self.graphs[index].module.graph.nodes
        return [str(n.target).removesuffix(".default") for n in nodes if n.op == "call_function"]


@pytest.fixture
def inner() -> EagerInner:
    return EagerInner()


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
