"""Memory that kernels need only while they run, as buffers of the program: it is allocated, shared with
others and released as they are, and counts in the plan of its memory. Where a kernel wants it zeroed, an
operator fills it before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Buffer, ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.schedule.result import Call, Launch, Schedule


@dataclass(frozen=True)
class Scratch:
    """What one kernel wants: bytes, and when they are zeroed (`Source.zeroed`)."""

    nbytes: int
    zeroed: str = ""


def with_scratch(schedule: Schedule, wanted: Mapping[tuple[str, Kernel], Scratch]) -> Schedule:
    """The schedule in which each launch that needs scratch has a buffer for it as its last operand.

    Args:
        schedule: what to run.
        wanted: that of each launch, by (backend, kernel).
    """
    if not any(scratch.nbytes for scratch in wanted.values()):
        return schedule
    graph = schedule.graph
    buffers = dict(graph.buffers)
    taken = {*buffers, *graph.objects, *(item.name for item in graph.inputs)}
    steps: list[Launch | Call] = []
    last_use: list[tuple[str, ...]] = []
    shared: dict[tuple[str, int], str] = {}
    last: dict[str, int] = {}
    for step, dying in zip(schedule.steps, schedule.last_use, strict=True):
        scratch = wanted.get((step.backend, step.kernel)) if isinstance(step, Launch) else None
        if isinstance(step, Launch) and scratch is not None and scratch.nbytes:
            device = buffers[step.writes[0]].device
            key = (device, scratch.nbytes)
            name = shared.get(key, "") if scratch.zeroed == "program" else ""
            if not name:
                name = next(n for n in (f"scratch_{i}" for i in range(len(taken) + 1)) if n not in taken)
                taken.add(name)
                buffers[name] = Buffer(name, DType.u8, device, (scratch.nbytes,), (1,), "uint8", "temp")
                if scratch.zeroed == "program":
                    shared[key] = name
                if scratch.zeroed:
                    steps.append(_zero(buffers[name]))
                    last_use.append(())
            last[name] = len(steps)
            step = replace(step, operands=(*step.operands, name))
        steps.append(step)
        last_use.append(dying)
    for name, position in last.items():
        last_use[position] = (*last_use[position], name)
    return replace(
        schedule, graph=replace(graph, buffers=buffers), steps=tuple(steps), last_use=tuple(last_use)
    )


def _zero(buffer: Buffer) -> Call:
    """The call that fills a buffer, which it makes."""
    view = View(buffer.name, buffer.size, buffer.stride, 0)
    node = ExternCall(f"zero_{buffer.name}", "aten.zero_.default", (view,), (), (buffer.name,), "into")
    return Call(node, (), (buffer.name,))
