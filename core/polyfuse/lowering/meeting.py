"""Whether what is computed of a value comes together in one value again.

The derivative of `x * sigmoid(x)` reads the sigmoid twice, for two factors of one product. Read by it alone,
the value need not be stored: one expression computes it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from torch.fx import Node

__all__ = ["readers_meet"]

_FAR = 32
"""Nodes after a value's among which its readers must meet."""


def readers_meet(node: Node, elementwise: Callable[[Node], bool]) -> bool:
    """Whether every path from a node leads through one node, and up to there through nodes for which
    `elementwise` holds: such as read each element of their arguments once.
    """
    awaited = set(node.users)
    for later in islice(_after(node), _FAR):
        if later not in awaited:
            continue
        if not elementwise(later):
            return False
        awaited.remove(later)
        if not awaited:
            return True
        awaited.update(later.users)
    return False


def _after(node: Node) -> Iterator[Node]:
    later = node.next
    while later.op != "root":
        yield later
        later = later.next
