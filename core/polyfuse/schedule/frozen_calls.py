"""Calls that are done once for each parameter leave the program.

Between kernels, each of them would look at its parameter and at what was made of it, which are in no cache.
Where the program's caller computes values from parameters anyway, their results become inputs of the program,
and nothing holds what they were made of. Elsewhere they become one call of all of them, before the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import cast

from polyfuse.ir.graph import Graph, GraphInput
from polyfuse.ir.nodes import ExternCall, Origin, View
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.frozen import FROZEN, ONCE, TOGETHER, FrozenOperand, FrozenStep, PackedInputs
from polyfuse.schedule.deps import storage_roots
from polyfuse.schedule.result import Call, Launch, Schedule


def as_inputs(schedule: Schedule, given: int) -> tuple[Schedule, PackedInputs | None]:
    """The schedule without these calls, whose results its graph takes as further inputs, and how to make
    them; None: there are none. Those of which libraries alone know what is in them stay where they are.

    Args:
        given: how many inputs calls pass. Where nothing reads a parameter behind these, or what follows from
            one, the graph does not take it.
    """
    graph = schedule.graph
    returned = graph.output_buffers()
    moved = [
        call
        for call in _packing(schedule, (FROZEN,))
        if (name := call.node.outputs[0]) not in returned and graph.buffers[name].kind == "temp"
    ]
    names = {call.node.name for call in moved}
    steps: list[Launch | Call] = []
    last_use: list[tuple[str, ...]] = []
    dead: tuple[str, ...] = ()
    for step, dying in zip(schedule.steps, schedule.last_use, strict=True):
        dead += dying
        if isinstance(step, Call) and step.node.name in names:
            continue  # what it was the last to read dies with the next step
        steps.append(step)
        last_use.append(dead)
        dead = ()
    read = {*graph.output_buffers(), *(name for step in steps for name in _touched(step))}
    # with all values there before a call, arguments are among the inputs, too
    behind = {i for i, item in enumerate(graph.inputs) if i >= given and (given or item.static)}
    unread = {i for i in behind if graph.inputs[i].name not in read}
    if not moved and not unread:
        return schedule, None
    inputs = [item for i, item in enumerate(graph.inputs) if i not in unread]
    buffers = dict(graph.buffers)
    for i in unread:
        del buffers[graph.inputs[i].name]
    for call in moved:
        buffer = buffers[call.node.outputs[0]]
        inputs.append(GraphInput(buffer.name, "tensor", static=True, address="aligned"))
        buffers[buffer.name] = replace(buffer, kind="input")
    apart = replace(
        graph,
        inputs=tuple(inputs),
        buffers=buffers,
        nodes=tuple(node for node in graph.nodes if node.name not in names),
    )
    left = replace(schedule, graph=apart, steps=tuple(steps), last_use=tuple(last_use))
    return left, _made(moved, graph, unread)


def _made(calls: Sequence[Call], graph: Graph, unread: Set[int]) -> PackedInputs:
    positions = {item.name: i for i, item in enumerate(graph.inputs)}
    steps, layouts = [], []
    for call in calls:
        operand, *plain = call.node.args
        source = FrozenOperand(positions[operand.buffer])
        steps.append(FrozenStep(call.node.op.removeprefix(FROZEN), (source, *plain), {}))
        buffer = graph.buffers[call.node.outputs[0]]
        # those of parameters, and so of what is made of them, do not vary
        layouts.append((cast(tuple[int, ...], buffer.size), cast(tuple[int, ...], buffer.stride)))
    return PackedInputs(tuple(steps), tuple(layouts), frozenset(unread))


def _touched(step: Launch | Call) -> Iterator[str]:
    yield from step.reads
    yield from step.writes
    if isinstance(step, Launch):
        yield from (operand for operand in step.operands if isinstance(operand, str))


def _packing(schedule: Schedule, prefixes: tuple[str, ...]) -> Iterator[Call]:
    """Calls that are done once for an input on the host that the graph does not write to; `prefixes`: of
    their names.
    """
    roots = storage_roots(schedule.graph)
    written = {roots[name] for name in _written(schedule.graph)}
    for step in schedule.steps:
        if isinstance(step, Call) and _may_begin(step.node, schedule.graph, prefixes):
            if roots[step.node.args[0].buffer] not in written:
                yield step


def together(schedule: Schedule, prefixes: tuple[str, ...] = ONCE) -> Schedule:
    """The schedule that begins with one call for each operator that it calls once for several parameters.

    Those that it writes to are looked at where they were, and so are those of other devices than the host.

    Args:
        prefixes: of the names of the calls that are gathered.
    """
    groups: dict[str, list[Call]] = {}
    for call in _packing(schedule, prefixes):
        groups.setdefault(call.node.op, []).append(call)
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


def _may_begin(node: ExternCall, graph: Graph, prefixes: tuple[str, ...]) -> bool:
    """Whether a call is done once, for an input on the host."""
    if not node.op.startswith(prefixes) or node.out != "single" or node.kwargs:
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
        op=_together_name(nodes[0].op),
        args=(tuple(node.args[0] for node in nodes), tuple(node.args[1:] for node in nodes)),
        kwargs=(),
        outputs=tuple(name for node in nodes for name in node.outputs),
        out="tuple",
        aliases=tuple(dict.fromkeys(name for node in nodes for name in node.aliases)),
        origins=tuple(origins),
    )
    reads = tuple(dict.fromkeys(name for call in calls for name in call.reads))
    return Call(node, reads, tuple(name for call in calls for name in call.writes))


def _together_name(op: str) -> str:
    prefix = next(prefix for prefix in ONCE if op.startswith(prefix))
    return f"{prefix}{TOGETHER}{op.removeprefix(prefix)}"
