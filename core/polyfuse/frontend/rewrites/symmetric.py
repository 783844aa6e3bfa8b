"""Sums over processes through symmetric memory, where the program or an option enabled it for their group.

    wait(all_reduce(x)), of two processes      -> x + what the other one has
    wait(all_reduce(x)), a short one of others -> all_reduce(x), each process reading from all others

The addition is an operator like others: what reads it is fused with it, and no sum is stored for the message
alone. All ranks that enabled it for a group choose alike: what is chosen follows from the graph alone.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import Node

from polyfuse.frontend.graph import Note
from polyfuse.frontend.rewrites.chunked import CHUNK
from polyfuse.frontend.rewrites.tools import Rewriting, tensor_value
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import group_of, symmetric_groups

_SUM: Final = "_c10d_functional.all_reduce.default"


def symmetric_sums(state: Rewriting) -> int:
    """Have each process add up what others have."""
    # without such a group our operators need not be imported
    if state.stage == "joint" or not symmetric_groups(state.settings.symmetric_memory):
        return 0
    exchanges: dict[str, int] | None = {}
    if any(ops.facts(node.target).is_higher_order for node in state.nodes()):
        # what is called there may exchange too, and take the slots in another order
        exchanges = None
    return sum(_summed(state, node, exchanges) for node in state.nodes() if ops.op_name(node.target) == _SUM)


def _summed(state: Rewriting, start: Node, exchanges: dict[str, int] | None) -> bool:
    from polyfuse.torch_compat import symmetric

    waits, x = list(start.users), tensor_value(start.args[0])
    if x is None or start.kwargs or start.args[1] != "sum" or len(waits) != 1:
        return False
    group = str(start.args[2])
    if ops.op_name(waits[0].target) != ops.WAIT_TENSOR or not symmetric.is_supported(x, group):
        return False
    nbytes = x.numel() * x.element_size()
    if exchanges is not None and _added(state, start, waits[0], nbytes, exchanges):
        return True
    if nbytes > symmetric.LARGEST_SUM or not state.spend():
        return False
    call = state.call_before(start, symmetric.ALL_REDUCE, tuple(start.args))
    _replaced(state, start, waits[0], call, "through memory that GPUs map from each other")
    return True


def _added(state: Rewriting, start: Node, wait: Node, nbytes: int, exchanges: dict[str, int]) -> bool:
    """A sum as the addition of what both processes have."""
    from polyfuse.torch_compat import symmetric

    name = str(start.args[2])
    group = group_of(name)
    if group is None or len(group.ranks) != symmetric.EXCHANGING or start.meta.get(CHUNK):
        return False
    if nbytes > symmetric.LARGEST_EXCHANGE or not state.spend():
        return False
    number = exchanges.get(name, 0)
    exchanges[name] = number + 1
    other = state.call_before(start, symmetric.EXCHANGE, (start.args[0], number % 2, not number, name))
    call = state.call_before(start, torch.ops.aten.add.Tensor, (start.args[0], other))
    _replaced(state, start, wait, call, "added up where it is read, in memory that GPUs map")
    return True


def _replaced(state: Rewriting, start: Node, wait: Node, call: Node, reason: str) -> None:
    state.notes.append(Note("symmetric", start.name, wait.name, reason))
    state.replace(wait, call)
    state.graph.erase_node(start)
