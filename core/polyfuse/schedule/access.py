"""What nodes read and write, as index expressions: the raw material of dependencies and fusion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.ir.expr import loads, walk
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import ExternCall, LoopNode, Node, Pointwise, Reduction, Scan, Scatter, View
from polyfuse.symbolic import Index, IndexLike, free_symbols


@dataclass(frozen=True)
class Access:
    """One access to a buffer.

    Attributes:
        buffer: name of the buffer.
        index: element, over the axes of the node (or unit); None where it is not known (gathers, extern
            calls).
        write: whether it writes.
        mode: store mode of a write.
    """

    buffer: str
    index: IndexLike | None
    write: bool
    mode: str = "set"


def accesses(node: Node) -> tuple[Access, ...]:
    """Accesses of `node`, reads first, each once."""
    if not isinstance(node, LoopNode):
        found = [Access(b, None, False) for b in reads(node)]
        return (*found, *(Access(b, None, True) for b in node.writes()))
    reading = loads(*node.expressions())
    out = [Access(expr.buffer, None if expr.indirect else expr.index, False) for expr in reading]
    return tuple(dict.fromkeys((*out, *_writes(node))))


def _writes(node: LoopNode) -> list[Access]:
    if isinstance(node, Pointwise):
        return [Access(node.output, node.index, True)]
    if isinstance(node, (Reduction, Scan)):
        return [Access(o, node.index, True) for o in node.outputs if o]
    if isinstance(node, Scatter):
        return [Access(node.target, None, True, node.mode)]
    raise TypeError(
        f"the scheduler has no access rule for {type(node).__name__}; add one in schedule/access.py"
    )


def symbols_used(node: Node, graph: Graph) -> tuple[str, ...]:
    """Shape symbols that `node` needs at run time: in its loops, indices, numbers, arguments and output
    layouts."""
    values: list[object] = []
    if isinstance(node, LoopNode):
        values += [node.sizes, node.rsizes, *(access.index for access in accesses(node))]
        values += [expr.payload for expr in walk(*node.expressions())]
    elif isinstance(node, ExternCall):
        values += [node.args, *(value for _, value in node.kwargs)]
    for name in node.writes():
        values += [graph.buffers[name].size, graph.buffers[name].stride]
    return tuple(dict.fromkeys(symbols_in(values)))


def symbols_in(value: object) -> Iterator[str]:
    """Shape symbols in indices and views, nested in sequences."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, Index):
        yield from free_symbols(value)
    elif isinstance(value, View):
        yield from symbols_in((value.size, value.stride, value.offset))
