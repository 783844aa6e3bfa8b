"""Dependencies between nodes, removal of dead nodes, and a stable order.

Nodes come in program order, so a buffer's current version is simply its last writer. An edge is *strong*
where a value flows (or a version is replaced), *weak* where only order matters: a write after the reads of
the version before.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from polyfuse.ir.communication import is_communication
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Collective, ExternCall, Node, Scatter
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.schedule.access import Access, accesses, symbols_in, symbols_used
from polyfuse.schedule.result import Decision


@dataclass(frozen=True)
class Dependencies:
    """Edges by node position: ``strong[i]`` and ``weak[i]`` are the positions that node `i` must follow.
    ``accesses[i]`` is what it reads and writes.
    """

    strong: tuple[frozenset[int], ...]
    weak: tuple[frozenset[int], ...]
    accesses: tuple[tuple[Access, ...], ...]


def storage_roots(graph: Graph) -> dict[str, str]:
    """Each buffer's representative among the buffers that may share its storage."""
    parent = {name: name for name in graph.buffers}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in graph.nodes:
        if isinstance(node, ExternCall):
            for output in node.outputs:
                for base in node.aliases:
                    if output and find(output) != find(base):
                        parent[find(output)] = find(base)
    return {name: find(name) for name in graph.buffers}


def dependencies(graph: Graph, roots: Mapping[str, str]) -> Dependencies:
    """Edges among the nodes of a graph."""
    nodes = graph.nodes
    strong: list[set[int]] = [set() for _ in nodes]
    weak: list[set[int]] = [set() for _ in nodes]
    writer: dict[str, int] = {}
    checks: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    definer: dict[str, int] = {}
    last_ordered: int | None = None
    last_of_group: dict[str, int] = {}
    made: list[tuple[Access, ...]] = []
    for i, node in enumerate(nodes):
        found = accesses(node)
        made.append(found)
        for access in found:
            if not access.write:
                root = roots[access.buffer]
                if root in writer:
                    strong[i].add(writer[root])
                strong[i].update(checks.get(root, ()))
                readers.setdefault(root, []).append(i)
        for access in found:
            if access.write:
                root = roots[access.buffer]
                if access.mode == CHECK_MODE:
                    # checks of one status are made in any order
                    strong[i].update([writer[root]] if root in writer else [])
                    weak[i].update(readers.get(root, ()))
                    checks.setdefault(root, []).append(i)
                    continue
                strong[i].update(checks.pop(root, ()))
                if root in writer:
                    strong[i].add(writer[root])
                weak[i].update(readers.pop(root, ()))
                writer[root] = i
        if definer:
            strong[i].update(definer[symbol] for symbol in symbols_used(node, graph) if symbol in definer)
        if isinstance(node, ExternCall):
            definer.update((symbol, i) for symbol, _ in node.symbols)
            if node.ordered:
                if last_ordered is not None:
                    weak[i].add(last_ordered)
                last_ordered = i
            if isinstance(node, Collective):
                if node.group in last_of_group:
                    weak[i].add(last_of_group[node.group])
                last_of_group[node.group] = i
        strong[i].discard(i)
        weak[i] -= strong[i] | {i}
    return Dependencies(tuple(map(frozenset, strong)), tuple(map(frozenset, weak)), tuple(made))


def live_graph(graph: Graph, decisions: list[Decision]) -> Graph:
    """`graph` without the nodes that have no effect: what writes neither an output, nor a mutated input, nor
    something that another node needs. `decisions` gets an entry for each.
    """
    roots = storage_roots(graph)
    needed = {roots[name] for name in (*graph.output_buffers(), *graph.mutated_inputs())}
    symbols = {name for output in graph.outputs for name in symbols_in(output.value)}
    defined = any(isinstance(node, ExternCall) and node.symbols for node in graph.nodes)
    alive: list[Node] = []
    dead: list[Decision] = []
    for node in reversed(graph.nodes):
        if _has_effect(node, symbols) or any(roots[name] in needed for name in node.writes()):
            alive.append(node)
            needed.update(roots[name] for name in reads(node))
            if defined:
                symbols.update(symbols_used(node, graph))
        else:
            dead.append(Decision("remove", node.name, "", "nothing uses what it computes"))
    decisions.extend(reversed(dead))
    return replace(graph, nodes=tuple(reversed(alive))) if dead else graph


def _has_effect(node: Node, symbols: Set[str]) -> bool:
    """Whether a node matters whoever reads what it writes. `symbols`: unbacked symbols that are needed."""
    if isinstance(node, Scatter):
        return node.mode == CHECK_MODE
    return isinstance(node, ExternCall) and (
        node.ordered or is_communication(node) or any(symbol in symbols for symbol, _ in node.symbols)
    )


def stable_order(edges: Sequence[set[int]], priority: Sequence[int]) -> list[int]:
    """Topological order that takes, of all that is ready, what has the smallest priority; no recursion.

    Raises:
        ValueError: the edges have a cycle.
    """
    waiting = [len(e) for e in edges]
    followers: list[list[int]] = [[] for _ in edges]
    for i, before in enumerate(edges):
        for j in sorted(before):
            followers[j].append(i)
    ready = [(priority[i], i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for follower in followers[i]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (priority[follower], follower))
    if len(order) != len(edges):
        stuck = [i for i, count in enumerate(waiting) if count]
        raise ValueError(
            f"the schedule has a cycle through steps {stuck[:8]}; a fusion that caused it was wrongly allowed"
        )
    return order
