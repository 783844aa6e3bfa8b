"""How many bytes a schedule reads and writes in memory, and how many it would without fusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyfuse.ir.expr import loads
from polyfuse.ir.graph import views_in
from polyfuse.ir.nodes import ExternCall, LoopNode, Node, Pointwise, Reduction, Scan, Scatter, View
from polyfuse.ir.ops import GROUP_MODES
from polyfuse.program.memory import storage_bytes
from polyfuse.schedule.result import Call, Launch, Schedule
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, example_value, free_axes, product


def bytes_moved(schedule: Schedule) -> tuple[int, int]:
    """Bytes read and written (before fusion, after fusion), for the example sizes.

    Per kernel, a buffer that is read counts once, and one that is written too: the smaller of its storage and
    the elements that the loops touch.
    """
    moved = steps_traffic(schedule)
    return sum(before for before, _ in moved), sum(after for _, after in moved)


def steps_traffic(schedule: Schedule) -> list[tuple[int, int]]:
    """`bytes_moved` of each step of a schedule, in their order."""
    removed = frozenset(schedule.removed)
    copied = frozenset(schedule.copies.values())
    known: dict[str, tuple[int, int]] = {}
    found: list[tuple[int, int]] = []
    for step in schedule.steps:
        name = step.name if isinstance(step, Launch) else step.node.name
        moved = known.get(schedule.copies.get(name, ""))
        if moved is None:
            moved = _traffic(step, schedule, removed)
            if name in copied:
                known[name] = moved
        found.append(moved)
    return found


def step_bytes(step: Launch | Call, schedule: Schedule) -> int:
    """Bytes that one step moves; what stays inside a kernel costs nothing."""
    return _traffic(step, schedule, frozenset(schedule.removed))[1]


def _traffic(step: Launch | Call, schedule: Schedule, removed: frozenset[str]) -> tuple[int, int]:
    apart = 0
    touched: dict[tuple[str, bool], int] = {}
    for node in step.nodes if isinstance(step, Launch) else (step.node,):
        own: dict[tuple[str, bool], int] = {}
        for buffer, size, write in _accesses(node, schedule):
            own[buffer, write] = max(own.get((buffer, write), 0), size)
            # a value made earlier in the same kernel is still in a register
            if write or (buffer, True) not in touched:
                touched[buffer, write] = max(touched.get((buffer, write), 0), size)
        apart += sum(own.values())
    if isinstance(step, Call):
        return apart, apart
    return apart, sum(size for (buffer, _), size in touched.items() if buffer not in removed)


def _accesses(node: Node, schedule: Schedule) -> Iterable[tuple[str, int, bool]]:
    """(buffer, bytes, whether written) for every access of a node."""
    if isinstance(node, ExternCall):
        yield from _extern_accesses(node, schedule)
        return
    if not isinstance(node, LoopNode):
        raise TypeError(f"bytes_moved() does not know {type(node).__name__}; add its rule beside the others")
    extents = {axis_name(a): axis_size(a) for a in (*node.axes, *node.raxes)}
    for load in loads(*node.expressions()):
        axes = extents if load.indirect else free_axes(load.index)
        yield load.buffer, _touched(load.buffer, axes, extents, schedule), False
    if isinstance(node, (Pointwise, Reduction, Scan)):
        for buffer in node.writes():
            yield buffer, _touched(buffer, free_axes(node.index), extents, schedule), True
    elif isinstance(node, Scatter):
        size = _touched(node.target, extents, extents, schedule)
        if node.mode not in ("set", *GROUP_MODES):
            yield node.target, size, False
        yield node.target, size, True


def _touched(buffer: str, axes: Iterable[str], extents: Mapping[str, IndexLike], schedule: Schedule) -> int:
    """The smaller of the buffer's storage and the elements that loops over `axes` reach."""
    graph = schedule.graph
    sizes: list[int | Index] = [extents[a] for a in axes if a in extents]
    looped = example_value(product(sizes), graph.symbol_hints) * graph.buffers[buffer].itemsize
    return min(looped, storage_bytes(graph.buffers[buffer], graph.symbol_hints))


def _extern_accesses(node: ExternCall, schedule: Schedule) -> Iterable[tuple[str, int, bool]]:
    graph = schedule.graph
    out_views = {view.buffer: view for key, view in node.kwargs if key == "out" and isinstance(view, View)}
    for view in views_in((node.args, tuple(value for _, value in node.kwargs))):
        buffer = graph.buffers[view.buffer]
        if buffer.kind != "object":
            looped = example_value(product(view.size), graph.symbol_hints) * buffer.itemsize
            yield (
                view.buffer,
                min(looped, storage_bytes(buffer, graph.symbol_hints)),
                out_views.get(view.buffer) == view,
            )
    for name in node.writes():
        if name not in out_views and name in graph.buffers and graph.buffers[name].kind != "object":
            yield name, storage_bytes(graph.buffers[name], graph.symbol_hints), True
