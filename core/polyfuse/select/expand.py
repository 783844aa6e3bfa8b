"""A graph in which some calls are replaced by their loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Node
from polyfuse.select.products import LoopForm

__all__ = ["expanded"]


def expanded(graph: Graph, forms: Mapping[str, LoopForm]) -> Graph:
    """`graph` with the calls named in `forms` replaced by these loops."""
    if not forms:
        return graph
    nodes: list[Node] = []
    buffers = dict(graph.buffers)
    for node in graph.nodes:
        form = forms.get(node.name)
        if form is None:
            nodes.append(node)
        else:
            nodes.extend(form.nodes)
            buffers[form.accumulator.name] = form.accumulator
    return replace(graph, buffers=buffers, nodes=tuple(nodes))
