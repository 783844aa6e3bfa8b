"""A graph in which some calls are done in another way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, Node
from polyfuse.select.products import LoopForm

__all__ = ["Taken", "expanded", "of_form"]


@dataclass(frozen=True)
class Taken:
    """What takes a call's place.

    Attributes:
        nodes: in order.
        buffers: new ones.
        reader: the name of a node whose work is done too; empty if none.
        objects: new host values, by key.
    """

    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    reader: str = ""
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False)


def of_form(form: LoopForm) -> Taken:
    """The loops of a product."""
    return Taken(form.nodes, (form.accumulator,))


def expanded(graph: Graph, taken: Mapping[str, Taken]) -> Graph:
    """`graph` with the calls named in `taken` replaced."""
    if not taken:
        return graph
    # with its reader, a call is done where that stands: what else it reads may not be there before
    places = {item.reader or name: item for name, item in taken.items()}
    nodes: list[Node] = []
    buffers, objects = dict(graph.buffers), dict(graph.objects)
    for node in graph.nodes:
        item = places.get(node.name)
        if item is not None:
            nodes.extend(item.nodes)
            buffers |= {buffer.name: buffer for buffer in item.buffers}
            objects |= item.objects
        elif node.name not in taken:
            nodes.append(node)
    return replace(graph, buffers=buffers, nodes=tuple(nodes), objects=objects)
