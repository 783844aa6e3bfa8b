"""What a forward saves for its backward, computed where what it is made of is at hand.

The partitioner puts calls that it moved out of the backward behind the whole forward, in the order of the
backward. There they keep what they read alive until the end, and are no part of the layer that they belong
to.
"""

from __future__ import annotations

from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting
from polyfuse.torch_compat import ops


def compute_saved_early(state: Rewriting) -> int:
    """Move the calls at the end of a forward that only its saved results need, behind what they read."""
    nodes = state.nodes() if state.stage == "forward" else []
    positions = {node: position for position, node in enumerate(nodes)}
    moving: set[Node] = set()
    for node in reversed(nodes):
        needed = all(user.op == "output" or user in moving for user in node.users)
        if not needed or not ops.facts(node.target).mergeable:
            break
        moving.add(node)
    # never in front of what writes to memory, or has to be done first
    first = max((positions[node] for node in nodes if not _is_passed(node)), default=-1)
    behind: dict[int, Node] = {}
    count = 0
    for node in nodes[len(nodes) - len(moving) :]:
        position = max(
            (positions[source] for source in node.all_input_nodes if source in positions), default=-1
        )
        if position <= first:
            continue
        # those that are moved to one position stay in order: they may read each other
        last = behind.get(position, nodes[position])
        positions[node] = position
        behind[position] = node
        if last.next is not node:
            if not state.spend():
                break
            for source in node.all_input_nodes:
                if source.op == "get_attr":  # a constant that stands where it was read
                    nodes[0].prepend(source)
            last.append(node)
            count += 1
    return count


def _is_passed(node: Node) -> bool:
    facts = ops.facts(node.target)
    return not (facts.mutates or facts.effects)
