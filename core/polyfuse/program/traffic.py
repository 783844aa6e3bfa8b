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
    before = after = 0
    for step in schedule.steps:
        nodes = step.nodes if isinstance(step, Launch) else (step.node,)
        before += sum(_node_bytes(node, schedule) for node in nodes)
        after += step_bytes(step, schedule)
    return before, after


def step_bytes(step: Launch | Call, schedule: Schedule) -> int:
    """Bytes that one step moves; what stays inside a kernel costs nothing."""
    if isinstance(step, Call):
        return _node_bytes(step.node, schedule)
    touched: dict[tuple[str, bool], int] = {}
    for node in step.nodes:
        for buffer, size, write in _accesses(node, schedule):
            # a value made earlier in the same kernel is still in a register
            if write or (buffer, True) not in touched:
                touched[buffer, write] = max(touched.get((buffer, write), 0), size)
    removed = set(schedule.removed)
    return sum(size for (buffer, _), size in touched.items() if buffer not in removed)


def _node_bytes(node: Node, schedule: Schedule) -> int:
    touched: dict[tuple[str, bool], int] = {}
    for buffer, size, write in _accesses(node, schedule):
        touched[buffer, write] = max(touched.get((buffer, write), 0), size)
    return sum(touched.values())


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
