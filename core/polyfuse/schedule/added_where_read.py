"""Sums of a split GEMM's parts that are added up where they are read.

A loop that reads a result at several positions, such as a rotation, which exchanges halves of rows, is not
fused with the one that adds the parts up: a neighbour is another program's. Where a launch costs more than
reading the parts again, it adds them up at each position itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from polyfuse.ir.expr import Expr, apply, guard, loads, moved, rewrite, walk
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Node, Pointwise, Reduction, Scatter
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.plugin import Backend, TargetInfo
from polyfuse.schedule.deps import storage_roots
from polyfuse.schedule.result import Decision

_MOST_PARTS = 4
"""Loads for one."""


def add_where_read(
    graph: Graph,
    claimed: Mapping[str, Backend],
    target_info: Callable[[str, str], TargetInfo],
    decisions: list[Decision],
) -> Graph:
    """`graph` without the loops that add up parts for such readers (`TargetInfo.launch_bytes`).

    Args:
        claimed: who generates the loops of `graph`, by the node's name.
        target_info: that of a backend, by its name, on a device.
        decisions: gets an entry for each loop that is left out.
    """
    sums = _sums(graph, claimed, target_info)
    if not sums:
        return graph
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        for name in reads(node):
            if name in sums:
                readers.setdefault(name, []).append(position)
    nodes: list[Node | None] = list(graph.nodes)
    for name, positions in readers.items():
        given = sums[name]
        changed = [_changed(nodes[at], given, claimed[given.name]) for at in positions]
        if any(node is None for node in changed) or not any(_is_shifted(nodes[at], name) for at in positions):
            continue
        for at, made in zip(positions, changed, strict=True):
            nodes[at] = made
        nodes[graph.nodes.index(given)] = None
        reason = "its parts are added up where they are read, at several positions"
        decisions.append(Decision("inline", given.name, graph.nodes[positions[0]].name, reason))
    return replace(graph, nodes=tuple(node for node in nodes if node is not None))


def _sums(
    graph: Graph, claimed: Mapping[str, Backend], target_info: Callable[[str, str], TargetInfo]
) -> dict[str, Pointwise]:
    """The loops that add up parts, by what they write: nothing else writes it, or the parts."""
    matmuls = {
        name
        for node in graph.nodes
        if isinstance(node, Reduction) and node.kind in CONTRACTIONS
        for name in node.writes()
    }
    if not matmuls:
        return {}
    roots = storage_roots(graph)
    writes = Counter(roots[name] for node in graph.nodes for name in node.writes())
    outputs = {*graph.output_buffers(), *graph.mutated_inputs()}
    found: dict[str, Pointwise] = {}
    for node in graph.nodes:
        if not isinstance(node, Pointwise) or node.output in outputs:
            continue
        parts = loads(node.value)
        if not 1 < len(parts) <= _MOST_PARTS or {part.buffer for part in parts}.difference(matmuls):
            continue
        once = all(writes[roots[name]] == 1 for name in (node.output, *(part.buffer for part in parts)))
        info = target_info(claimed[node.name].name, graph.buffers[node.output].device)
        numel = graph.buffers[node.output].numel
        few = isinstance(numel, int) and numel * sum(part.dtype.itemsize for part in parts)
        if once and few and few <= info.launch_bytes and _is_of_one_element(node):
            found[node.output] = node
    return found


def _is_of_one_element(node: Pointwise) -> bool:
    """Whether all that is loaded lies as far from what is written at every point, and nothing else varies."""
    for expr in walk(node.value):
        if expr.op in ("index", "size", "rand"):
            return False
        if expr.op == "load" and (expr.args or not isinstance(expr.index - node.index, int)):
            return False
    return True


def _is_shifted(node: Node | None, name: str) -> bool:
    """Whether a loop reads a buffer at several positions."""
    assert isinstance(node, (Pointwise, Scatter))
    return len({read.index for read in loads(node.value) if read.buffer == name}) > 1


def _changed(node: Node | None, given: Pointwise, backend: Backend) -> Node | None:
    """A loop that adds up the parts itself; None where it cannot, or its backend refuses it."""
    if not isinstance(node, (Pointwise, Scatter)) or node.raxes:
        return None
    read = [found for found in loads(*node.expressions()) if found.buffer == given.output]
    if any(found.indirect for found in read) or not set(read) <= set(loads(node.value)):
        return None
    # sums of nothing are zero, as what a masked load has elsewhere mostly is
    linear = all(expr.op in ("load", "add", "cast") for expr in walk(given.value))

    def added(expr: Expr) -> Expr:
        if expr.op != "load" or expr.buffer != given.output:
            return expr
        away = expr.index - given.index
        total = rewrite(given.value, lambda e: moved(e, e.index + away) if e.op == "load" else e)
        if expr.mask is None or expr.other is None:
            return total
        total = guard(total, expr.mask)
        is_zero = expr.other.op == "const" and expr.other.value == 0
        return total if linear and is_zero else apply("where", expr.mask, total, expr.other)

    made = replace(node, value=rewrite(node.value, added))
    return made if backend.claims(made) else None
