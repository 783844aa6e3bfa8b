"""Units in an order in which computing goes on beside collectives: what `reorder` must know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from polyfuse.base.settings import Settings
from polyfuse.ir.communication import IN_SHARED_MEMORY, Running, never_awaited
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Collective, ExternCall, LoopNode, Node, Reduction, View, Wait
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.plugin import TargetInfo
from polyfuse.runtime.ranks.estimates import collective_seconds
from polyfuse.schedule.context import ScheduleContext
from polyfuse.schedule.fusion.score import nbytes, touched_bytes
from polyfuse.schedule.fusion.units import Unit
from polyfuse.schedule.overlap.reorder import Plan, Task, overlapped
from polyfuse.schedule.peak.live import storages
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import IndexLike, product

_START: Final = 5e-6
"""Seconds in which a kernel or call begins and ends."""
_GEMMS: Final = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1, "convolution": 1}
"""Calls that compute more than they move, and the argument whose sizes say how much: the last one, or those
of a filter.
"""


@dataclass(frozen=True)
class Overlap:
    """Units in the best order that is known, and what is expected of it.

    Attributes:
        units: in that order.
        decisions: what was decided for each collective.
        seconds: that all of it takes, by estimates.
        exposed: of them, those in which nothing computes because a collective runs.
        usual_seconds, usual_exposed: the same in the order that was given.
    """

    units: list[Unit]
    decisions: list[Decision]
    seconds: float = 0.0
    exposed: float = 0.0
    usual_seconds: float = 0.0
    usual_exposed: float = 0.0

    def summary(self, usual: Overlap) -> Decision:
        """What this order gains over another schedule in the order of the program."""
        before, after = usual.usual_exposed * 1e6, self.exposed * 1e6
        reason = (
            f"exposed communication by estimates: {before:.0f} us in the program's order, {after:.0f} us so"
        )
        return Decision("overlap", "", "", reason)

    def unchanged(self) -> Decision:
        """That the order of the program is as good as any."""
        reason = (
            "no other order is better than that of the trace; exposed communication by estimates:"
            f" {self.usual_exposed * 1e6:.0f} us"
        )
        return Decision("overlap", "", "", reason)


def overlap_units(
    units: Sequence[Unit],
    edges: Sequence[set[int]],
    context: ScheduleContext,
    settings: Settings,
    removed: frozenset[str],
    target_info: Callable[[str], TargetInfo],
) -> Overlap:
    """Units in an order in which collectives take less time, and what was decided.

    Args:
        units: in an order that respects `edges`, the units that each must follow.
        context: of the units' graph.
        removed: buffers that get no memory.
        target_info: that of a device.
    """
    graph, roots, hint = context.graph, context.roots, context.hint
    nodes = [unit.members[0].node for unit in units]
    if not any(isinstance(node, Collective) for node in nodes):
        return Overlap(list(units), [])
    ends = _ends(nodes)
    sizes, given = _storages(context, removed)
    tasks: list[Task] = []
    for number, (unit, node) in enumerate(zip(units, nodes, strict=True)):
        before = frozenset(edges[number])
        touches = tuple(dict.fromkeys(roots[name] for name in unit.seen if roots[name] in sizes))
        if isinstance(node, Collective):
            device = graph.buffers[node.writes()[0]].device if node.writes() else "cpu"
            seconds = communication_seconds(node, graph, device, settings.network_bandwidth * 1e6, hint)
            tasks.append(Task("start", before, seconds, (), touches))
        elif isinstance(node, Wait):
            tasks.append(Task("wait", before, 0.0, ends[number], touches))
        else:
            device = next((graph.buffers[name].device for name in unit.seen), "cpu")
            seconds = computing_seconds(unit, graph, target_info(device), hint)
            tasks.append(Task("compute", before, seconds, (), touches))
    live_out = frozenset(
        roots[name] for name in (*graph.output_buffers(), *sorted(never_awaited(graph.nodes)))
    )
    usual, best = overlapped(tasks, sizes, live_out, settings.overlap_memory / 100, given)
    decisions = list(_decisions(nodes, tasks, best))
    return Overlap(
        [units[number] for number in best.order],
        decisions,
        best.seconds,
        _exposed(tasks, best),
        usual.seconds,
        _exposed(tasks, usual),
    )


def _exposed(tasks: Sequence[Task], plan: Plan) -> float:
    """Seconds in which a collective is waited for and nothing computes."""
    return sum(max(0.0, tasks[start].seconds - hidden) for start, hidden in plan.hidden.items())


def communication_bits(nodes: Sequence[Node]) -> tuple[int, int]:
    """Bit sets of the positions of collectives, and of waits, among nodes."""
    starts = sum(1 << position for position, node in enumerate(nodes) if isinstance(node, Collective))
    return starts, sum(1 << position for position, node in enumerate(nodes) if isinstance(node, Wait))


def _ends(nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """For each wait, the starts that it is for."""
    found: dict[int, tuple[int, ...]] = {}
    running, positions = Running(), {node.name: number for number, node in enumerate(nodes)}
    for number, node in enumerate(nodes):
        if isinstance(node, Wait):
            found[number] = tuple(positions[c.name] for c in running.of(node.mutates))
        running.pass_by(node)
    return found


def waits_at_once(units: Sequence[Unit]) -> bool:
    """Whether nothing runs beside a collective in this order: the step behind each one waits for it."""
    nodes = [unit.members[0].node for unit in units]
    after = [*nodes[1:], None]
    return all(
        isinstance(wait, Wait) and set(wait.mutates).issuperset(start.writes())
        for start, wait in zip(nodes, after, strict=True)
        if isinstance(start, Collective)
    )


def started_in_order(units: Sequence[Unit], edges: Sequence[set[int]]) -> list[set[int]]:
    """Edges, and those that make collectives of whichever groups start in the order that they have: other
    processes, whose sizes may differ, start them in that order too."""
    starts = [i for i, unit in enumerate(units) if isinstance(unit.members[0].node, Collective)]
    found = [set(before) for before in edges]
    for earlier, later in pairwise(starts):
        found[later].add(earlier)
    return found


def _storages(context: ScheduleContext, removed: frozenset[str]) -> tuple[dict[str, int], frozenset[str]]:
    """Bytes of the storages that the program allocates or can release, and those that are there before it."""
    found = storages(context, removed)
    callers = {
        context.roots[b.name] for b in context.graph.buffers.values() if b.kind in ("input", "constant")
    }
    callers -= found.given
    return {root: n for root, n in found.sizes.items() if root not in callers}, found.given


def _decisions(nodes: Sequence[Node], tasks: Sequence[Task], best: Plan) -> list[Decision]:
    found: list[Decision] = []
    position = {number: at for at, number in enumerate(best.order)}
    for number, task in enumerate(tasks):
        if task.kind != "wait":
            continue
        for start in task.ends:
            steps = best.order[position[start] + 1 : position[number]]
            between = sum(tasks[n].kind == "compute" for n in steps)
            hidden, seconds = best.hidden[start] * 1e6, tasks[start].seconds * 1e6
            reason = (
                f"{between} steps of computing are between its start and the wait; by estimates they hide "
                f"{hidden:.0f} of {seconds:.0f} us"
            )
            found.append(Decision("overlap", nodes[start].name, nodes[number].name, reason))
    return found


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
    within a host where all processes of the group are on one. Where a rank reads what another one has,
    whoever reads it takes that time.
    """
    if node.op.startswith(IN_SHARED_MEMORY):
        return 0.0
    largest = max(nbytes(graph, names, hint) for names in (reads(node), node.writes()))
    return collective_seconds(node.op, largest, node.group, device, bandwidth)
