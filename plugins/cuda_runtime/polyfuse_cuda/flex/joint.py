"""The traced gradient of a score's function, with what it adds to captured tensors taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from polyfuse.base.errors import UnsupportedError

_FIRST = 5
"""Results before those for captured tensors: the score's, and those of its four indices, which have none."""


def with_scatters(joint: Any, wanted: Sequence[int]) -> tuple[GraphModule, list[tuple[int, int]]]:
    """The function with other results: the score's gradient, and for each addition to the gradient of a
    `wanted` captured tensor the element's indices, then the value.

    Returns it with the captured tensor and the number of indices of each addition.

    Raises:
        UnsupportedError: `joint` is no traced function, or adds to whole rows.
    """
    if not isinstance(joint, GraphModule):
        raise UnsupportedError(f"a {type(joint).__name__} is no traced function")
    graph = Graph()
    copies: dict[Node, Any] = {}
    results: Sequence[Any] = ()
    for node in joint.graph.nodes:
        if node.op == "output":
            results = node.args[0]
        else:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    found: list[Any] = [copies[results[0]]]
    counts: list[tuple[int, int]] = []
    for k in wanted:
        for scatter in _scatters(results[_FIRST + k]):
            index = [copies[i] if isinstance(i, Node) else None for i in scatter.args[1]]
            if any(i is None or i.meta["val"].dim() for i in index):
                raise UnsupportedError("the score's function reads whole rows of a tensor with a gradient")
            found += [*index, copies[scatter.args[2]]]
            counts.append((k, len(index)))
    graph.output(found)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    return GraphModule(joint, graph), counts


def _scatters(node: Any) -> Iterator[Node]:
    """The additions that a gradient is the sum of."""
    if not isinstance(node, Node):
        return
    name = str(node.target)
    if name == "flex_lib.zeros_and_scatter.default":
        yield node
    elif node.target is torch.ops.aten.add.Tensor:
        for part in node.args:
            yield from _scatters(part)
    else:
        raise UnsupportedError(f"the gradient of a captured tensor is made by {name}")
