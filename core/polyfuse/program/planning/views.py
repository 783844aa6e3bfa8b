"""Views among the operands and results of a schedule."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.graph import Graph, views_in
from polyfuse.ir.nodes import Buffer, View
from polyfuse.schedule.result import Call, Schedule


def is_whole(view: View, buffer: Buffer) -> bool:
    """Whether a view is the buffer itself."""
    return (
        (view.size, view.stride, view.offset) == (buffer.size, buffer.stride, 0)
        and (view.dtype is None or view.dtype is buffer.dtype)
    ) or buffer.kind == "object"


def is_view_of_result(view: View, graph: Graph) -> bool:
    """Whether a result is a view of what the graph computed, of which autograd is to know.

    AOTAutograd makes those of inputs, and in training those that autograd follows, from their bases.
    """
    buffer = graph.buffers[view.buffer]
    if graph.kind != "inference" or view.dtype is not None or is_whole(view, buffer):
        return False
    return all(view.buffer != item.name for item in graph.inputs)


def repeated_views(graph: Graph, schedule: Schedule) -> frozenset[View]:
    """Views that are needed more than once, as operands or results."""
    counts: dict[View, int] = {}
    wanted: list[Any] = [o.value for o in graph.outputs]
    for step in schedule.steps:
        if isinstance(step, Call):
            wanted.append((step.node.args, tuple(value for _, value in step.node.kwargs)))
    for view in views_in(wanted):
        if not is_whole(view, graph.buffers[view.buffer]):
            counts[view] = counts.get(view, 0) + 1
    return frozenset(view for view, count in counts.items() if count > 1)
