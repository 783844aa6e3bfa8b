"""Short sums over processes through symmetric memory, where the program enabled it for their group.

    wait(all_reduce(x)), a short message   -> all_reduce(x), each process reading from all others

All ranks that enabled it for a group choose alike: what is chosen follows from the graph alone.
"""

from __future__ import annotations

from typing import Final

from torch.fx import Node

from polyfuse.frontend.graph import Note
from polyfuse.frontend.rewrites.tools import Rewriting, tensor_value
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import symmetric_groups

_SUM: Final = "_c10d_functional.all_reduce.default"


def symmetric_sums(state: Rewriting) -> int:
    """Have each process add up short messages of all others itself."""
    # without such a group our operator need not be imported
    if state.settings.symmetric_memory == "off" or state.stage == "joint" or not symmetric_groups():
        return 0
    return sum(_summed(state, node) for node in state.nodes() if ops.op_name(node.target) == _SUM)


def _summed(state: Rewriting, start: Node) -> bool:
    from polyfuse.torch_compat import symmetric

    waits, x = list(start.users), tensor_value(start.args[0])
    if x is None or start.kwargs or start.args[1] != "sum" or len(waits) != 1:
        return False
    group = str(start.args[2])
    if ops.op_name(waits[0].target) != ops.WAIT_TENSOR or not symmetric.is_supported(x, group):
        return False
    if x.numel() * x.element_size() > symmetric.LARGEST_SUM or not state.spend():
        return False
    call = state.call_before(start, symmetric.ALL_REDUCE, tuple(start.args))
    reason = "through memory that GPUs map from each other"
    state.notes.append(Note("symmetric", start.name, waits[0].name, reason))
    state.replace(waits[0], call)
    state.graph.erase_node(start)
    return True
