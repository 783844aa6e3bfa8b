"""The code that is generated for a function, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.compiler.built import BuiltGraph
from polyfuse.compiler.compile import compile_fx_graph
from polyfuse.compiler.reports.watch import watch
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.nodes import View
from polyfuse.symbolic import Index, example_value
from polyfuse.torch_compat.tracing.frames import without_compile


@dataclass(frozen=True)
class GeneratedGraph:
    """What one graph became.

    Attributes:
        name: of the graph.
        program: the host program, in Python.
        kernels: the source of each kernel, by its name in the program.
    """

    name: str
    program: str
    kernels: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join((self.program, *self.kernels.values()))


@dataclass
class _Collector:
    """Keeps the texts of what is compiled; `hollow` programs compute nothing."""

    hollow: bool
    found: list[GeneratedGraph] = field(default_factory=list)

    def captured(self, gm: Any, inputs: Sequence[Any]) -> AbstractContextManager[None]:
        return nullcontext()

    def compiling(self, aten: AtenGraph) -> AbstractContextManager[None]:
        return nullcontext()

    def entries(self, kernels: Mapping[str, Any]) -> Mapping[str, Any]:
        return kernels

    def built(self, aten: AtenGraph, built: object) -> None:
        assert isinstance(built, BuiltGraph)
        kernels = {name: item.emitted.source.rendered() for name, item in built.kernels.items()}
        self.found.append(GeneratedGraph(aten.name, built.module.text, kernels))
        if self.hollow:
            built.module.replace_run(lambda args: _zeros(built, args))

    def reported(self, report: object) -> None:
        pass


def _zeros(built: BuiltGraph, args: list[Any]) -> tuple[Any, ...]:
    """Results of the right shapes, of a program that is not run."""
    args.clear()
    graph = built.schedule.graph
    made: list[Any] = []
    hints = dict(graph.symbol_hints)
    for output in graph.outputs:
        value = output.value
        if isinstance(value, View):
            buffer = graph.buffers[value.buffer]
            size, stride = ([example_value(n, hints) for n in part] for part in (value.size, value.stride))
            dtype = getattr(torch, buffer.torch_dtype)
            made.append(torch.empty_strided(size, stride, dtype=dtype, device=buffer.device or "cpu").zero_())
        else:
            made.append(example_value(value, hints) if isinstance(value, (int, Index)) else None)
    return tuple(made)


def run_and_get_code(
    fn: Callable[..., Any],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> tuple[Any, list[GeneratedGraph]]:
    """Compile a function anew, call it, and return its result with all that was generated for it, in the
    order in which it was compiled: of a result that needs gradients, the backward too unless that is compiled
    when it first runs.

    Args:
        fn: a function or module, compiled or not.
        args, kwargs: what it is called with.
        mode, options, dynamic: as for `torch.compile(fn, backend="polyfuse", ...)`.
    """
    with _collecting(False) as collector:
        result = _compiled(fn, mode, options, dynamic)(*args, **kwargs)
    return result, collector.found


def get_code(
    fn: Callable[..., Any],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> list[GeneratedGraph]:
    """As `run_and_get_code`, but no kernel and no operator of the graph is run: results are zeros.

    Raises:
        UnsupportedError: nothing was compiled.
    """
    with _collecting(True) as collector:
        _compiled(fn, mode, options, dynamic)(*args, **kwargs)
    if not collector.found:
        raise UnsupportedError("nothing was compiled: the function has no operators, or runs in eager mode")
    return collector.found


@contextmanager
def _collecting(hollow: bool) -> Iterator[_Collector]:
    collector = _Collector(hollow)
    with watch(collector):
        yield collector


def _compiled(
    fn: Callable[..., Any], mode: str | None, options: Mapping[str, Any] | None, dynamic: bool | None
) -> Callable[..., Any]:
    given = {"graph_cache": False, **(options or {})}

    def compiler(gm: Any, inputs: Any) -> Callable[..., Any]:
        # Dynamo compiles anew for a backend that it has not seen
        return compile_fx_graph(gm, inputs, mode, given)

    return torch.compile(without_compile(fn), backend=compiler, dynamic=dynamic)
