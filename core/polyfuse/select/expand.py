"""A graph in which some calls are done in another way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, Node
from polyfuse.plugin import Backend

__all__ = ["Taken", "expanded"]


@dataclass(frozen=True)
class Taken:
    """What takes a call's place.

    Attributes:
        nodes: in order.
        buffers: new ones.
        reader: the name of a node whose work is done too; empty if none.
        removed: names of nodes before the call whose work is done too.
        objects: new host values, by key.
        backend: who generates the loops among the nodes.
        folds: names of reductions over its results that are begun with it.
    """

    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    reader: str = ""
    removed: tuple[str, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False)
    backend: Backend | None = field(default=None, compare=False)
    folds: tuple[str, ...] = ()


def expanded(graph: Graph, taken: Mapping[str, Taken]) -> Graph:
    """`graph` with the calls named in `taken` replaced."""
    if not taken:
        return graph
    # with its reader, a call is done where that stands: what else it reads may not be there before
    places = {item.reader or name: item for name, item in taken.items()}
    gone = {name for item in taken.values() for name in item.removed}
    nodes: list[Node] = []
    buffers, objects = dict(graph.buffers), dict(graph.objects)
    for node in graph.nodes:
        item = places.get(node.name)
        if item is not None:
            nodes.extend(item.nodes)
            buffers |= {buffer.name: buffer for buffer in item.buffers}
            objects |= item.objects
        elif node.name not in taken and node.name not in gone:
            nodes.append(node)
    return replace(graph, buffers=buffers, nodes=tuple(nodes), objects=objects)
