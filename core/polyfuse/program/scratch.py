"""Memory that kernels need only while they run, as buffers of the program: it is allocated, shared with
others and released as they are, and counts in the plan of its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Buffer
from polyfuse.ir.types import DType
from polyfuse.schedule.result import Launch, Schedule

__all__ = ["with_scratch"]


def with_scratch(schedule: Schedule, wanted: Mapping[tuple[str, Kernel], int]) -> Schedule:
    """The schedule in which each launch that needs scratch has a buffer for it as its last operand.

    Args:
        schedule: what to run.
        wanted: bytes for each launch, by (backend, kernel).
    """
    if not any(wanted.values()):
        return schedule
    graph = schedule.graph
    buffers = dict(graph.buffers)
    taken = {*buffers, *graph.objects, *(item.name for item in graph.inputs)}
    steps, last_use = list(schedule.steps), list(schedule.last_use)
    for position, step in enumerate(steps):
        size = wanted.get((step.backend, step.kernel), 0) if isinstance(step, Launch) else 0
        if isinstance(step, Launch) and size:
            name = next(n for n in (f"scratch_{i}" for i in range(len(taken) + 1)) if n not in taken)
            taken.add(name)
            device = buffers[step.writes[0]].device
            buffers[name] = Buffer(name, DType.u8, device, (size,), (1,), "uint8", "temp")
            steps[position] = replace(step, operands=(*step.operands, name))
            last_use[position] = (*last_use[position], name)
    return replace(
        schedule, graph=replace(graph, buffers=buffers), steps=tuple(steps), last_use=tuple(last_use)
    )
