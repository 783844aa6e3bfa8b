"""A device like a GPU, without one: planned with its target info, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.base.settings import Settings
from polyfuse.frontend.capture import compile_graph
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.verifier.verify import verify_graph, verify_kernel
from polyfuse.lowering import lower_graph
from polyfuse.plugin import TargetInfo
from polyfuse.program import Program, plan, python_text
from polyfuse.reference.backend import InterpreterBackend
from polyfuse.runtime.module import load
from polyfuse.schedule import Launch, Schedule
from schedule_builder import scheduled

WIDE = TargetInfo(
    blocks=64,
    lanes=8,
    split_chunk=32,
    row_bytes=0,
    few_rows=16,
    long_row=256,
    two_pass_row=64,
    licm=False,
    launch_bytes=1 << 12,
    double_sums=False,
    alignment=16,
)
"""Like a graphics processor in proportion, but small, so that small tensors show what large ones would."""


class WideBackend(InterpreterBackend):
    """Claims everything for a wide device."""

    name = "wide"
    chosen = WIDE

    def target_info(self, device: str) -> TargetInfo:
        return self.chosen


@dataclass
class Planned:
    """What became of each graph of a compiled function."""

    schedules: list[Schedule] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def kernels(self, graph: int = 0) -> list[str]:
        return [s.kernel.name for s in self.schedules[graph].steps if isinstance(s, Launch)]

    def decisions(self, kind: str, graph: int = 0) -> list[str]:
        return [d.first for d in self.schedules[graph].decisions if d.kind == kind]


def wide(
    fn: Callable[..., Any],
    *,
    dynamic: bool | None = False,
    backend: type[WideBackend] = WideBackend,
    **options: Any,
) -> tuple[Callable[..., Any], Planned]:
    """`fn` compiled as for a wide device, and a record of the plans."""
    torch._dynamo.reset()
    settings = Settings(**options)
    made = backend(settings)
    record = Planned()

    def inner(aten: AtenGraph) -> Callable[[list[Any]], Sequence[Any]]:
        graph = lower_graph(aten, settings, target_info=made.target_info)
        schedule = scheduled(graph, settings, lambda _: (made,))
        verify_graph(schedule.graph)
        for step in schedule.steps:
            if isinstance(step, Launch):
                verify_kernel(step.kernel)
        program = plan(schedule, settings)
        text = python_text(program)
        record.schedules.append(schedule)
        record.programs.append(program)
        record.texts.append(text)
        kernels = {entry.name: _interpreted(entry.kernel) for entry in program.kernels}
        return load(text, kernels, graph.objects)

    def backend_of(gm: Any, inputs: Any) -> Callable[..., Any]:
        return compile_graph(gm, inputs, inner=inner, settings=settings)

    return torch.compile(fn, backend=backend_of, dynamic=dynamic), record


def _interpreted(kernel: Any) -> Callable[..., None]:
    return lambda *operands: run_kernel(kernel, operands)
