"""Which parameters are packed once without the option `freezing`: as many as their copies have room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyfuse.autotune.alternatives import Alternative
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import ExternCall, Node, View
from polyfuse.runtime.frozen import CHECKED, room_of
from polyfuse.schedule import Decision
from polyfuse.symbolic import evaluate

_MEGABYTE = 1 << 20


def room(graph: Graph) -> int:
    """Bytes that packed copies of a graph's parameters may take."""
    return room_of(sum(_bytes(graph, item.name) for item in graph.inputs if item.static))


def within_room(
    graph: Graph,
    offers: Mapping[str, Sequence[Alternative]],
    decisions: list[Decision],
    *,
    bounded: bool = True,
) -> dict[str, Alternative]:
    """The first offer for each call that packs no parameter, or for whose copy there is room. The smallest
    parameters come first: what a call of a library costs beside laying out a weight is saved more often then.

    `bounded`: whether room is limited; it is not where no library does what stays unpacked.
    """
    costs = {call: _cost(graph, items[0].replacement.nodes) for call, items in offers.items() if items}
    most, taken = room(graph), _cost(graph, graph.nodes)
    chosen: dict[str, Alternative] = {}
    for call in sorted(costs, key=lambda name: costs[name]):
        for item in offers[call]:
            cost = _cost(graph, item.replacement.nodes)
            if bounded and taken + cost > most:
                why = f"packed weights may take {most // _MEGABYTE} MB together"
                decisions.append(Decision("declined", call, item.name, why))
                continue
            taken += cost
            why = "known to be faster here"
            if cost:
                share = f"{cost / _MEGABYTE:.1f} MB"
                share += f" of at most {most // _MEGABYTE} MB" if bounded else ""
                why += f"; its weight is packed once for all calls, {share}"
            decisions.append(Decision("choice", call, item.name, why))
            chosen[call] = item
            break
    return {call: chosen[call] for call in offers if call in chosen}


def is_within_room(graph: Graph, repeated: Iterable[Node], copies: int) -> bool:
    """Whether there is room for all that a graph packs, and for what some of its nodes would pack again, so
    many times.
    """
    return _cost(graph, graph.nodes) + copies * _cost(graph, repeated) <= room(graph)


def _cost(graph: Graph, nodes: Iterable[Node]) -> int:
    """Bytes of the parameters that some calls pack."""
    calls = (node for node in nodes if isinstance(node, ExternCall))
    packed = [node.args[0] for node in calls if node.op.startswith(CHECKED)]
    return sum(_bytes(graph, view.buffer) for view in packed if isinstance(view, View))


def _bytes(graph: Graph, name: str) -> int:
    buffer = graph.buffers.get(name)
    if buffer is None or buffer.dtype is None:
        return 0
    try:
        return evaluate(buffer.numel, graph.symbol_hints) * buffer.dtype.itemsize
    except KeyError:  # a size that nobody can guess
        return 0
