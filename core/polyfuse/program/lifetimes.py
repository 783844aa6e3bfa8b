"""What the buffers of a program go through: who touches them, when they come into being, when they die."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from polyfuse.base.settings import Settings
from polyfuse.ir.communication import IN_SHARED_MEMORY
from polyfuse.ir.graph import Graph, views_in
from polyfuse.ir.nodes import ADDS_IN_PLACE, View
from polyfuse.program.memory import Lifetime, storage_bytes
from polyfuse.schedule.kernels.lifetimes import storage_key
from polyfuse.schedule.peak.live import saved_inputs
from polyfuse.schedule.result import Call, Launch, Schedule


def lifetimes(schedule: Schedule, settings: Settings) -> list[Lifetime]:
    """The lifetime of every buffer that gets memory in a schedule's program, by first write."""
    graph = schedule.graph
    removed, live_out = frozenset(schedule.removed), frozenset(graph.output_buffers())
    shared = _shared_storage(schedule)
    last = {name: i for i, names in enumerate(schedule.last_use) for name in names}
    found: dict[str, Lifetime] = {}
    taken: set[str] = set()
    for position, step in enumerate(schedule.steps):
        made_by_operator = isinstance(step, Call) and step.node.out in ("single", "tuple")
        inplace = _written_over(step, graph) if settings.inplace else {}
        for name in _touched(step):
            buffer = graph.buffers.get(name)
            if name in found or name in removed or buffer is None or buffer.kind != "temp":
                continue
            if isinstance(step, Call) and step.node.out == "none" and name in step.node.outputs:
                continue
            own = name not in shared and name not in live_out
            made = made_by_operator and name in step.writes
            # an operator may return less than it announced: what nobody reads is not looked at
            checked = settings.size_asserts and name not in schedule.last_use[position]
            takes = inplace.get(name, "")
            if takes in taken or (takes and not _may_take(found.get(takes), position, storage_key(buffer))):
                takes = ""
            taken.update([takes] if takes else ())
            found[name] = Lifetime(
                name=name,
                key=storage_key(buffer),
                size=0 if _is_shared(step) else storage_bytes(buffer, graph.symbol_hints),
                first=position,
                last=None if name in live_out else last.get(name),
                poolable=own and (checked or not made),
                allocated=not made,
                takes=takes,
            )
    return list(found.values())


@dataclass(frozen=True)
class Released:
    """An input that a program releases: bytes, the first step, and the last one that reads it."""

    size: int
    first: int
    last: int


def released_inputs(schedule: Schedule) -> list[Released]:
    """What a backward got from its forward and nobody else holds."""
    graph = schedule.graph
    last = {name: i for i, names in enumerate(schedule.last_use) for name in names}
    last |= dict.fromkeys(graph.output_buffers(), len(schedule.steps) - 1)
    found = sorted(saved_inputs(graph).intersection(last))
    return [Released(storage_bytes(graph.buffers[n], graph.symbol_hints), 0, last[n]) for n in found]


def _is_shared(step: Launch | Call) -> bool:
    """Whether what a step makes lies in memory that processes share."""
    return isinstance(step, Call) and step.node.op.startswith(IN_SHARED_MEMORY)


def _written_over(step: Launch | Call, graph: Graph) -> dict[str, str]:
    """The operand in whose storage each output may be, if it dies there.

    A library adds a matmul to what its output holds.
    """
    if isinstance(step, Launch):
        return dict(step.inplace)
    node = step.node
    if node.op not in ADDS_IN_PLACE or node.out != "out" or node.kwargs or node.outputs[0] in step.reads:
        return {}
    term, *operands = node.args
    output = graph.buffers[node.outputs[0]]
    whole = isinstance(term, View) and (term.size, term.stride) == (output.size, output.stride)
    whole = whole and term.offset == 0 and term.dtype is None
    if not whole or any(view.buffer == term.buffer for view in views_in(operands)):
        return {}
    return {output.name: term.buffer}


def used_buffers(schedule: Schedule) -> frozenset[str]:
    """What some step reads or writes, and what is a result."""
    names = set(schedule.graph.output_buffers())
    for step in schedule.steps:
        names.update(_touched(step))
    return frozenset(names)


def unused_inputs(graph: Graph, used: Container[str]) -> tuple[str, ...]:
    """Tensors among the inputs that are not among what is used."""
    return tuple(i.name for i in graph.inputs if i.kind == "tensor" and i.name not in used)


def used_constants(graph: Graph, used: Container[str]) -> tuple[str, ...]:
    """Constants that are among what is used."""
    return tuple(b.name for b in graph.buffers.values() if b.kind == "constant" and b.name in used)


def _touched(step: Launch | Call) -> Iterator[str]:
    if isinstance(step, Launch):
        yield from (o for o in step.operands if isinstance(o, str))
    yield from step.reads
    yield from step.writes


def _shared_storage(schedule: Schedule) -> frozenset[str]:
    """Buffers that may share storage with others through an operator's results."""
    shared: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, Call) and step.node.aliases:
            shared.update(step.node.aliases)
            shared.update(step.node.outputs)
    return frozenset(shared)


def _may_take(old: Lifetime | None, position: int, key: object) -> bool:
    """Whether the storage of `old`, if nobody has taken it, can really be handed over at this step."""
    return (
        old is not None and old.poolable and old.first < position and old.last == position and old.key == key
    )
