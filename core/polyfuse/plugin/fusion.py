"""What a plugin says about fusions, on top of the core's legality: what the hook `polyfuse_fusion_rules`
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.ir.nodes import Node
    from polyfuse.plugin.claims import Claim
    from polyfuse.plugin.target_info import TargetInfo


@dataclass(frozen=True)
class FusionPair:
    """Two groups of nodes that may become one kernel. Sizes are likely ones where they are dynamic.

    Attributes:
        first, second: the nodes of each in program order; where one needs what the other computes, the first
            runs before the second.
        device: such as `"cpu"` or `"cuda:0"`.
        backend: the name of the one that would generate the kernel.
        target: what that one says of the device.
        points: parallel points of the larger of the two.
        loop: iterations of the longest reduction loop at each point; 1 where there is none.
        shared_bytes: of the buffers that both access: what a fusion may read or write once instead of twice.
        touched_bytes: of all buffers that they access.
        buffers: how many these are.
        streams: how many of these have an element for each iteration of the larger of the two, or more: not
            sums of rows, weights of columns, scalars.
    """

    first: Sequence[Node]
    second: Sequence[Node]
    device: str
    backend: str
    target: TargetInfo
    points: int = 1
    loop: int = 1
    shared_bytes: int = 0
    touched_bytes: int = 0
    buffers: int = 0
    streams: int = 0


@dataclass(frozen=True)
class FusionRule:
    """A plugin's rule about fusions. It must not depend on anything but the pair, so that equal
    graphs are compiled alike.

    Attributes:
        name: what `polyfuse explain` shows, and what the option `disable_fusion_rules` names, alone or as
            `"plugin.name"`.
        allows: whether the core may fuse what it finds legal. None: always.
        worth: bytes of memory traffic by which the fusion is better, or, below 0, worse than the traffic that
            it saves says; of the fusions that are possible, the one that is worth most is made first. None:
            always 0.
        backends: names of those whose kernels it is about. Empty: the plugin's own backend; of a plugin
            without one, all.
    """

    name: str
    allows: Callable[[FusionPair], Claim] | None = None
    worth: Callable[[FusionPair], int] | None = None
    backends: tuple[str, ...] = ()
