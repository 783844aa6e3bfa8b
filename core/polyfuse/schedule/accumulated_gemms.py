"""Matmuls that add to what is there: the library writes over the term instead of a result of its own.

The gradient of a weight that each step of a loop uses is a sum of matmuls. A kernel that adds them reads and
writes matrices that the library could have added to, and all of them are in memory until it runs.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.expr import Expr, apply
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, Node, Pointwise, View
from polyfuse.ir.types import DType
from polyfuse.runtime.devices.registry import device_of
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import contiguous_strides

_ADDING = {"aten.mm.out": "aten.addmm.out", "aten.bmm.out": "aten.baddbmm.out"}
"""Operators of torch that return a matmul, and those that add it to a term."""

_EXACT = (DType.f32, DType.f64)
"""Types whose sums are not rounded once more than the kernel's that added them."""


def accumulate(graph: Graph, decisions: list[Decision]) -> Graph:
    """The graph whose sums of matmuls on the host are added up by the calls that make them.

    The terms of a sum are taken in their order from the left, as long as each is the result of a call that
    nothing else reads, and what it is added to dies there.
    """
    search = _Search(graph)
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Pointwise) and node.value.op == "add" and search.is_plain(node):
            search.take(position, node, decisions)
    nodes = search.nodes
    return replace(graph, nodes=tuple(nodes[at] for at in sorted(nodes))) if search.changed else graph


class _Search:
    """The nodes of a graph by their positions, while sums are taken into calls."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self.live_out = frozenset(graph.output_buffers())
        # where sums are made that calls have taken
        self.made: dict[str, int] = {}
        self.changed = False

    def is_plain(self, node: Pointwise) -> bool:
        """Whether a node fills a buffer of a type that is added exactly, on the host."""
        buffer = self.graph.buffers[node.output]
        uses = self.graph.uses.writers[node.output]
        fits = (
            buffer.kind == "temp" and buffer.dtype in _EXACT and uses == [self.graph.uses.position[node.name]]
        )
        return fits and device_of(buffer.device).is_host

    def take(self, position: int, node: Pointwise, decisions: list[Decision]) -> None:
        """Let calls add up as many terms of a sum as can be, from the left."""
        terms = _terms(node.value)
        loads = [self._loaded(term, node) for term in terms]
        if len(terms) < 2 or not loads[0] or not loads[1]:
            return
        if self._adds_to(loads[1], loads[0], position) is None:
            loads[:2] = loads[1::-1]
            terms[:2] = terms[1::-1]
        taken = 0
        total = loads[0]
        for name in loads[1:]:
            call = self._adds_to(name, total, position) if name else None
            if call is None:
                break
            at = self.graph.uses.position[call.name]
            self.nodes[at] = self._adding(call, total)
            decisions.append(Decision("accumulate", call.name, node.name, "it is added to what dies there"))
            total, taken = name, taken + 1
        if not taken:
            return
        self.changed = True
        rest = terms[taken + 1 :]
        if rest:
            self.nodes[position] = replace(node, value=_sum([terms[taken], *rest]))
            return
        at = self.graph.uses.writers[total][0]
        self.made[node.output] = at
        last = self.nodes[at]
        assert isinstance(last, ExternCall)
        origins = tuple(dict.fromkeys((*last.origins, *node.origins)))
        self.nodes[at] = replace(last, outputs=(node.output,), origins=origins)
        del self.nodes[position]

    def _loaded(self, term: Expr, node: Pointwise) -> str:
        """The buffer that a term of a sum is loaded from, if it has the result's layout, else empty."""
        if term.op != "load" or term.args or term.index != node.index:
            return ""
        mine, own = self.graph.buffers[term.buffer], self.graph.buffers[node.output]
        return term.buffer if _layout(mine) == _layout(own) else ""

    def _adds_to(self, name: str, total: str, position: int) -> ExternCall | None:
        """The call that makes a term and could add it to `total`: that is there before, and only added."""
        graph, uses = self.graph, self.graph.uses
        made, written = uses.writers.get(name, ()), uses.writers.get(total, ())
        if len(made) != 1 or len(written) != 1 or self.made.get(total, written[0]) >= made[0]:
            return None
        if uses.readers[name] != [position] or uses.readers[total] != [position]:
            return None
        call, buffer = self.nodes.get(made[0]), graph.buffers[total]
        if buffer.kind != "temp" or {name, total} & self.live_out or not isinstance(call, ExternCall):
            return None
        plain = call.op in _ADDING and call.out == "out" and not call.kwargs and not call.symbols
        return call if plain and buffer.stride == contiguous_strides(buffer.size) else None

    def _adding(self, call: ExternCall, total: str) -> ExternCall:
        buffer = self.graph.buffers[total]
        term = View(total, buffer.size, buffer.stride)
        return replace(call, op=_ADDING[call.op], args=(term, *call.args))


def _terms(value: Expr) -> list[Expr]:
    """The terms of a sum that is added up from the left."""
    found: list[Expr] = []
    while value.op == "add":
        found.append(value.args[1])
        value = value.args[0]
    return [value, *reversed(found)]


def _sum(terms: list[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = apply("add", total, term)
    return total


def _layout(buffer: Buffer) -> tuple[object, ...]:
    return buffer.device, buffer.torch_dtype, buffer.size, buffer.stride
