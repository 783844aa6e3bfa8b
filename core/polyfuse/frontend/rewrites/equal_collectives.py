"""Equal collectives of one operand become one, as those of sequence-parallel layers that read the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from torch.fx import Node

from polyfuse.frontend.describe import mutated_nodes
from polyfuse.frontend.rewrites.tools import Rewriting
from polyfuse.torch_compat import ops

_FUNCTIONAL: Final = frozenset(
    f"_c10d_functional.{name}.default"
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
)
"""They write to new memory."""


def merge_collectives(state: Rewriting) -> int:
    """Let what waits for the second one of two equal collectives read the result of the first.

    That follows from the graph alone, so that all ranks leave out the same ones.
    """
    if state.stage == "joint":
        return 0
    count = 0
    first: dict[Hashable, Node] = {}
    for node in state.nodes():
        if not _is_wait(node):
            if mutated_nodes(node) and not ops.op_name(node.target).startswith("_c10d_functional."):
                first.clear()  # what was read before a write is not what is read after it
            continue
        start = node.args[0]
        if not isinstance(start, Node) or len(start.users) != 1 or start.kwargs:
            continue
        if start.op != "call_function" or ops.op_name(start.target) not in _FUNCTIONAL:
            continue
        key = start.target, tuple(start.args)
        earlier = first.setdefault(key, node)
        if earlier is node or state.escapes(node) or not state.spend():
            continue
        state.replace(node, earlier)
        state.graph.erase_node(start)
        count += 1
    return count


def _is_wait(node: Node) -> bool:
    return ops.op_name(node.target) == ops.WAIT_TENSOR
