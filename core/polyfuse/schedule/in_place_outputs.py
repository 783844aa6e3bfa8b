"""In-place outputs: library calls that write into a slice of a larger tensor.

`torch.cat([a @ b, a @ c], 1)` computes two GEMMs and then copies both results. A library writes its result to
the memory that it is given, so the call gets the slice of the larger tensor as its `out=`, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import ROWS_APART, Buffer, ExternCall, Node, Pointwise, View
from polyfuse.runtime.devices.registry import device_of
from polyfuse.schedule.deps import storage_roots
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import Index, IndexLike, axis_size, coefficient, free_axes, is_nonnegative, substitute

_ALIGNMENT = 16
"""Bytes of which addresses of rows are multiples where devices read and write vectors."""


def write_in_place(graph: Graph, decisions: list[Decision], *, exact: bool = False) -> Graph:
    """The graph without copies of what a call could write to the copy's target itself. With `exact`, only
    where that has the layout of a result of its own: libraries add up in another order where rows have gaps.
    """
    calls = {
        n.outputs[0]: i
        for i, n in enumerate(graph.nodes)
        if isinstance(n, ExternCall) and _takes_out(n, graph)
    }
    if not calls:
        return graph
    roots = storage_roots(graph)
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        for name in reads(node):
            readers.setdefault(name, []).append(position)
    nodes: dict[int, Node] = dict(enumerate(graph.nodes))
    begun = {item.name for item in graph.inputs}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Pointwise) and _is_copy(node) and graph.buffers[node.output].kind == "temp":
            source = node.value.buffer
            made = calls.get(source)
            view = _slice(node, graph) if made is not None and readers[source] == [position] else None
            if made is not None and view is not None:
                call = graph.nodes[made]
                assert isinstance(call, ExternCall)
                if _may_write(call, graph.nodes[made + 1 : position], node.output, roots, graph, view, exact):
                    nodes[position] = _with_out(call, view, first=node.output not in begun)
                    del nodes[made]
                    reason = "its result is written to where it would be copied"
                    decisions.append(Decision("in_place_output", call.name, node.name, reason))
        begun.update(node.writes())
    return replace(graph, nodes=tuple(nodes[k] for k in sorted(nodes)))


def _takes_out(node: ExternCall, graph: Graph) -> bool:
    """Whether a call writes its result to memory that it is given, and nothing but the graph holds that."""
    if node.out != "out" or node.ordered or node.symbols or node.mutates:
        return False
    name = node.outputs[0]
    escapes = graph.is_output(name) or graph.buffers[name].kind != "temp"
    return node.op.startswith("aten.") and not escapes


def _is_copy(node: Pointwise) -> bool:
    """Whether elements are moved as they are."""
    value = node.value
    return value.op == "load" and not value.args


def _may_write(
    call: ExternCall,
    between: Sequence[Node],
    target: str,
    roots: dict[str, str],
    graph: Graph,
    view: View,
    exact: bool,
) -> bool:
    """Whether a call may run later in the program, with a slice of another buffer for its result."""
    operands = {roots[name] for name in reads(call)}
    if roots[target] in operands or any(roots[name] in operands for n in between for name in n.writes()):
        return False
    source, buffer = graph.buffers[call.outputs[0]], graph.buffers[target]
    same = (source.torch_dtype, source.device) == (buffer.torch_dtype, buffer.device)
    if not same or view.size != source.size or not _is_aligned(view, source):
        return False
    if view.stride == source.stride and _is_dense(view):
        return True
    return not exact and call.op in ROWS_APART and _has_rows(view)


def _is_aligned(view: View, buffer: Buffer) -> bool:
    """Whether rows begin where a device is as fast as with memory of its own; the host always is."""
    if device_of(buffer.device).is_host:
        return True
    if buffer.dtype is None:
        return False
    elements = max(1, _ALIGNMENT // buffer.dtype.itemsize)
    return all(n % elements == 0 for n in (view.offset, *view.stride[:-1]))


def _is_dense(view: View) -> bool:
    """Whether a view is contiguous."""
    step: IndexLike = 1
    for size, stride in reversed(list(zip(view.size, view.stride, strict=True))):
        if size != 1 and stride != step:
            return False
        step = step * size
    return True


def _has_rows(view: View) -> bool:
    """Whether a view is a matrix of contiguous rows, perhaps with gaps between them."""
    return len(view.size) == 2 and view.stride[1] == 1 and is_nonnegative(view.stride[0] - view.size[1])


def _with_out(call: ExternCall, view: View, *, first: bool) -> ExternCall:
    """The call with a slice of a buffer for its result; `first` where nothing is written to that before."""
    kwargs = (*call.kwargs, ("out", view))
    if first:
        return replace(call, kwargs=kwargs, outputs=(view.buffer,), out="into")
    return replace(call, kwargs=kwargs, outputs=(), out="none", mutates=(view.buffer,))


def _slice(copy: Pointwise, graph: Graph) -> View | None:
    """The slice of its output that a copy fills with all that it reads, in the same order of elements."""
    name, index = copy.value.buffer, copy.value.index
    buffer = graph.buffers[name]
    steps: list[tuple[IndexLike, IndexLike, IndexLike]] = []
    for variable in copy.axes:
        axis = free_axes(variable)[0]
        read, write = coefficient(index, axis), coefficient(copy.index, axis)
        if read is None or write is None:
            return None
        if axis_size(variable) != 1:
            steps.append((axis_size(variable), read, write))
    if _start(index, copy.axes) != 0:
        return None
    strides: list[IndexLike] = []
    for size, stride in zip(reversed(buffer.size), reversed(buffer.stride), strict=True):
        found = _stride(size, stride, steps)
        if found is None:
            return None
        strides.append(found)
    if steps:
        return None
    offset = _start(copy.index, copy.axes)
    return View(copy.output, buffer.size, tuple(reversed(strides)), offset)


def _stride(
    size: IndexLike, stride: IndexLike, steps: list[tuple[IndexLike, IndexLike, IndexLike]]
) -> IndexLike | None:
    """The stride in what is written that goes with one in what is read; takes the axes that make it up."""
    if size == 1:
        return stride
    covered: IndexLike = 1
    result: IndexLike | None = None
    while covered != size:
        step = next((s for s in steps if s[1] == stride * covered), None)
        if step is None:
            return None
        steps.remove(step)
        if result is None:
            result = step[2]
        elif step[2] != result * covered:
            return None
        covered = covered * step[0]
    return result


def _start(index: IndexLike, axes: Sequence[Index]) -> IndexLike:
    """An index at the first point of its axes."""
    return substitute(index, {free_axes(a)[0]: 0 for a in axes})
