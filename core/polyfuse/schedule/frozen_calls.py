"""Calls that are done once for each parameter become one call of all of them, before the others.

Between kernels, each of them would look at its parameter and what it keeps of it, which are in no cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import ExternCall, Origin, View
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.frozen import FROZEN, TOGETHER
from polyfuse.schedule.deps import storage_roots
from polyfuse.schedule.result import Call, Launch, Schedule

__all__ = ["together"]


def together(schedule: Schedule) -> Schedule:
    """The schedule that begins with one call for each operator that it calls once for several parameters.

    Those that it writes to are looked at where they were, and so are those of other devices than the host.
    """
    roots = storage_roots(schedule.graph)
    written = {roots[name] for name in _written(schedule.graph)}
    groups: dict[str, list[Call]] = {}
    for step in schedule.steps:
        if isinstance(step, Call) and _may_begin(step.node, schedule.graph):
            if roots[step.node.args[0].buffer] not in written:
                groups.setdefault(step.node.op, []).append(step)
    groups = {op: calls for op, calls in groups.items() if len(calls) > 1}
    if not groups:
        return schedule
    moved = {call.node.name for calls in groups.values() for call in calls}
    steps: list[Launch | Call] = [_one(calls) for calls in groups.values()]
    last_use: list[tuple[str, ...]] = [() for _ in steps]
    for step, dying in zip(schedule.steps, schedule.last_use, strict=True):
        if isinstance(step, Call) and step.node.name in moved:
            last_use[-1] += dying  # what was read by a step before, too, is released behind that
            continue
        steps.append(step)
        last_use.append(dying)
    return replace(schedule, steps=tuple(steps), last_use=tuple(last_use))


def _may_begin(node: ExternCall, graph: Graph) -> bool:
    """Whether a call is done once, for an input on the host."""
    if not node.op.startswith(FROZEN) or node.op.startswith(TOGETHER) or node.out != "single" or node.kwargs:
        return False
    operand = node.args[0]
    buffer = graph.buffers[operand.buffer] if isinstance(operand, View) else None
    return buffer is not None and buffer.kind == "input" and device_of(buffer.device).is_host


def _written(graph: Graph) -> Iterator[str]:
    """Buffers that are filled or changed, not made by an operator."""
    for node in graph.nodes:
        made = node.outputs if isinstance(node, ExternCall) and node.out in ("single", "tuple") else ()
        yield from (name for name in node.writes() if name not in made)


def _one(calls: list[Call]) -> Call:
    """The call of an operator for all the parameters that these calls have."""
    nodes = [call.node for call in calls]
    origins: dict[Origin, None] = dict.fromkeys(origin for node in nodes for origin in node.origins)
    node = ExternCall(
        name=f"{nodes[0].name}_together",
        op=TOGETHER + nodes[0].op.removeprefix(FROZEN),
        args=(tuple(node.args[0] for node in nodes), tuple(node.args[1:] for node in nodes)),
        kwargs=(),
        outputs=tuple(name for node in nodes for name in node.outputs),
        out="tuple",
        aliases=tuple(dict.fromkeys(name for node in nodes for name in node.aliases)),
        origins=tuple(origins),
    )
    reads = tuple(dict.fromkeys(name for call in calls for name in call.reads))
    return Call(node, reads, tuple(name for call in calls for name in call.writes))
