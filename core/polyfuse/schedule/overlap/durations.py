"""How long a unit takes, roughly: enough to say what may hide a collective, not to predict seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Collective, ExternCall, LoopNode, Node, Reduction, View
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.plugin import TargetInfo
from polyfuse.runtime.ranks.estimates import collective_seconds
from polyfuse.schedule.fusion.score import nbytes, touched_bytes
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import IndexLike, product

_START: Final = 5e-6
"""Seconds in which a kernel or call begins and ends."""

_GEMMS: Final = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1, "convolution": 1}
"""Calls that compute more than they move, and the argument whose sizes say how much: the last one, or those
of a filter.
"""


def computing_seconds(
    unit: Unit, graph: Graph, target_info: TargetInfo, hint: Callable[[IndexLike], int]
) -> float:
    """Seconds of a unit that computes: what it moves, or what it multiplies."""
    moving = touched_bytes(graph, unit, hint) / target_info.bandwidth
    work = sum(_operations(member.node, graph, hint) for member in unit.members)
    return _START + max(moving, work / target_info.operations)


def _operations(node: Node, graph: Graph, hint: Callable[[IndexLike], int]) -> float:
    """Multiplications and additions of a GEMM or convolution; 0 for anything else."""
    if isinstance(node, Reduction) and node.kind in CONTRACTIONS:
        return 2.0 * hint(product((*node.sizes, *node.rsizes)))
    if isinstance(node, LoopNode) or not isinstance(node, ExternCall) or not node.writes():
        return 0.0
    short = node.op.removeprefix("aten.").partition(".")[0]
    operand = node.args[_GEMMS[short]] if short in _GEMMS else None
    if not isinstance(operand, View):
        return 0.0
    depth = product(operand.size[1:]) if short == "convolution" else operand.size[-1]
    return 2.0 * hint(graph.buffers[node.writes()[0]].numel) * hint(depth)


def communication_seconds(
    node: Collective, graph: Graph, device: str, bandwidth: float, hint: Callable[[IndexLike], int]
) -> float:
    """Seconds of a collective on a device, over a network that moves so many bytes in a second; 0: as was
    measured in a world like this one (`CollectiveCosts`), else over the network that the device knows of,
    within a host where all processes of the group are on one.
    """
    largest = max(nbytes(graph, names, hint) for names in (reads(node), node.writes()))
    return collective_seconds(node.op, largest, node.group, device, bandwidth)
