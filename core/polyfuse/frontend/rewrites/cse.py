"""Compute equal things once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from polyfuse.frontend.describe import alias_root
from polyfuse.frontend.rewrites.tools import Rewriting
from polyfuse.torch_compat import ops

# Nodes that differ in one of these are not merged: the partitioner treats them differently.
_DISTINGUISHING_META = ("recompute", "ac_graph_id", "partitioner_tag", "is_gradient_acc", "custom")


def merge_duplicates(state: Rewriting) -> int:
    """Calls of the same operator on the same arguments become one, unless it draws random numbers, has an
    effect, or the caller would get the two results as two tensors."""
    count = 0
    seen: dict[Hashable, Node] = {}
    for node in state.graph.nodes:
        if node.op == "get_attr":
            key: Hashable = ("get_attr", node.target)
        elif node.op == "call_function":
            facts = ops.facts(node.target)
            if facts.mutates or facts.is_higher_order:
                # What was read before a write is not what is read after it.
                seen.clear()
            if not facts.mergeable:
                continue
            key = (node.target, _key(node.args), _key(node.kwargs), _meta_key(node))
        else:
            continue
        earlier = seen.get(key)
        if earlier is None:
            seen[key] = node
        elif _mergeable(state, node, earlier) and state.spend():
            state.replace(node, earlier)
            count += 1
    return count


def _mergeable(state: Rewriting, node: Node, earlier: Node) -> bool:
    if node.op == "get_attr":
        return True
    root, other = alias_root(node), alias_root(earlier)
    if root is other:
        # Two equal views of one tensor: only the tensor objects that the caller gets must stay two.
        return not state.is_output(node)
    if not state.escapes(node):
        return True
    return state.stage != "joint" and not state.escapes(earlier)


def _key(value: Any) -> Hashable:
    """A key equal only for arguments that mean the same: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if isinstance(value, Node):
        return ("node", value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    if isinstance(value, list | tuple):
        return ("list", *(_key(v) for v in value))
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, float | complex):
        return (type(value).__name__, repr(value))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return (type(value).__name__, str(value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


def _meta_key(node: Node) -> Hashable:
    return tuple((name, _key(node.meta[name])) for name in _DISTINGUISHING_META if name in node.meta)
