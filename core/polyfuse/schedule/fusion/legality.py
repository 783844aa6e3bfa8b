"""May two units become one kernel? Each refusal has its reason. The order of tests: cheap ones first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import ExternCall, LoopNode, Pointwise, Scatter
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.plugin import FusionPair, FusionRules, TargetInfo
from polyfuse.schedule.context import ScheduleContext
from polyfuse.schedule.fusion.columns import divides_columns
from polyfuse.schedule.fusion.diagnose import mismatch
from polyfuse.schedule.fusion.footprint import keeps_more_alive, keeps_waiting
from polyfuse.schedule.fusion.gemm_epilogues import has_gemm, leader
from polyfuse.schedule.fusion.score import nbytes, shared_bytes, touched_bytes
from polyfuse.schedule.fusion.space import Match, Space, match_spaces
from polyfuse.schedule.fusion.units import Member, Unit, UnitAccess, remap
from polyfuse.schedule.result import Unfused
from polyfuse.symbolic import Index, IndexLike, atoms, axis_name, axis_size, coefficient, product

_WIDEST = 8
"""Bytes of the widest type."""
_FEW_BUFFERS = 16
"""Buffers of a kernel up to which large units that share no data become one: launches take time."""

Half = tuple[tuple[Member, ...], tuple[UnitAccess, ...]]


@dataclass(frozen=True)
class Fusion:
    """A legal fusion: both halves in the common space, and the unit whose backend generates it (None while
    only the spaces were compared).
    """

    first: Half
    second: Half
    space: Space
    like: Unit | None = None


@dataclass(frozen=True)
class Rules(ScheduleContext):
    """What legality depends on besides the two units. `unfused` names nodes that are faster in kernels of
    their own, and `communication` holds the bit sets of collectives and of waits that computation should
    overlap. `offered` are plugins' fusion rules for a backend on a device type, and `matches` the common
    spaces found so far.
    """

    offered: Callable[[str, str], FusionRules]
    unfused: tuple[Unfused, ...] = ()
    communication: tuple[int, int] = (0, 0)
    matches: dict[object, Match | None] = field(default_factory=dict)

    def match(self, first: Unit, second: Unit, a: IndexLike, b: IndexLike) -> Match | None:
        """The common space of two units in which two indices are the same element; units of equal layers ask
        for the same.
        """
        key = first.space, second.space, a, b
        if key not in self.matches:
            self.matches[key] = match_spaces(*key, self.hint)
        return self.matches[key]

    def offered_for(self, backend: str, device: str) -> FusionRules:
        """Plugins' fusion rules for a backend on a device."""
        return self.offered(backend, device.partition(":")[0])

    def pair(self, first: Unit, second: Unit, backend: str) -> FusionPair:
        """Two units as these rules see them."""
        target = self.target_info(backend, first.device)
        return pair_of(self.graph, first, second, backend, target, self.hint)

    def share_communication(self, first: Unit, second: Unit) -> bool:
        """Whether two units that pass no data are before and after the same communication: else one could be
        computed while the other waits.
        """
        starts, waits = self.communication
        return not ((first.after ^ second.after) & starts or (first.before ^ second.before) & waits)

    def are_unfused(self, first: Unit, second: Unit) -> bool:
        """Whether units hold nodes that were timed to be faster in kernels of their own."""
        if not self.unfused:
            return False
        one, other = ({m.node.name for m in unit.members} for unit in (first, second))
        return any((one & a and other & b) or (one & b and other & a) for a, b in self.unfused)

    def horizontal_key(self, unit: Unit) -> tuple[str, ...]:
        """Units with equal keys may become one kernel though they share no data: the key is what they
        compute, or their loops alone where each element is computed by itself: an entry of a list that
        something else is done with, too, shares the kernel of the others.
        """
        nodes = [m.node for m in unit.members if isinstance(m.node, LoopNode)]
        if all(isinstance(node, Pointwise) for node in nodes):
            return tuple(sorted({repr((node.sizes, node.rsizes)) for node in nodes}))
        return _computation(unit)

    def fuses_horizontally(self, unit: Unit, other: Unit | None = None) -> bool:
        """Whether horizontal fusion joins a unit and others with its key, such as `other`."""
        if self.settings.horizontal_fusion:
            return True
        limit = self.target_info(unit.backend, unit.device).launch_bytes
        if not limit:
            return False
        if not unit.is_reduction:
            buffers = unit.seen.keys() if other is None else unit.seen.keys() | other.seen.keys()
            if len(buffers) <= _FEW_BUFFERS:
                return True
        return all(touched_bytes(self.graph, u, self.hint) <= limit for u in (unit, other) if u is not None)


def can_fuse(rules: Rules, first: Unit, second: Unit) -> Fusion | str:
    """The fusion of `first` before `second`, or the reason against it."""
    if first.is_call or second.is_call:
        return "an extern call is not fused"
    if first.device != second.device:
        return f"they run on different devices, {first.device} and {second.device}"
    like = leader(rules.backends, first, second, rules.settings.epilogue_fusion)
    if isinstance(like, str):
        return like
    if rules.are_unfused(first, second):
        return "timed, they are faster unfused"
    if second.after & first.bits:
        return "the second must run before the first"
    size = len(first.members) + len(second.members)
    if size > rules.settings.max_fusion_size:
        return f"together they have {size} operations, more than max_fusion_size"
    between = _path_between(first, second)
    if between:
        third = rules.graph.nodes[(between & -between).bit_length() - 1]
        words = f"{third.name} ({third.op})" if isinstance(third, ExternCall) else third.name
        return f"{words} runs between them"
    dependent = bool(second.before & first.bits)
    if not dependent and _gap(first, second) > rules.settings.max_horizontal_distance:
        return "they are far apart, and fusing them would keep buffers alive between them"
    found = _common_space(rules, first, second)
    if isinstance(found, str):
        return found
    found = replace(found, like=like)
    passes = dependent and passes_data(rules, first, second)
    if not passes and not rules.share_communication(first, second):
        return "one can be computed beside communication that the other waits for"
    if passes:
        launch_bytes = rules.target_info(like.backend, first.device).launch_bytes
        if keeps_more_alive(rules.graph, first, second, rules.hint, launch_bytes):
            return "it would keep what the first reads alive beside what the second writes, and save little"
        if keeps_waiting(rules.graph, first, second, rules.hint):
            return "results of several calls would wait for the last of them"
    if (
        not passes
        and not _share_reads(found.first[1], found.second[1])
        and not _share_cache_lines(found.first[1], found.second[1])
        and not _without_sharing(rules, first, second)
    ):
        return _explained("they share no data", first, second)
    offered = rules.offered_for(like.backend, first.device)
    return (offered.refuse and offered.refusal(rules.pair(first, second, like.backend))) or found


def _gap(first: Unit, second: Unit) -> int:
    """Steps of the program between the last node of one and the first of the other; 0 where they
    interleave.
    """
    return max(second.first - first.last, first.first - second.last, 0)


def _path_between(first: Unit, second: Unit) -> int:
    """The bits of nodes on paths between the two: if fused, they would be in a cycle with these."""
    own = first.bits | second.bits
    return (first.after & second.before | second.after & first.before) & ~own


def _computation(unit: Unit) -> tuple[str, ...]:
    """What a unit's members compute, whatever the buffers: equal for the entries of a foreach operator."""
    found = {
        repr((type(m.node).__name__, m.node.sizes, m.node.rsizes, tuple(o.op for o in m.node.origins)))
        for m in unit.members
        if isinstance(m.node, LoopNode)
    }
    return tuple(sorted(found))


def _without_sharing(rules: Rules, first: Unit, second: Unit) -> bool:
    """Whether two units may share a kernel although they share no data."""
    if rules.settings.aggressive_fusion:
        return not (first.is_reduction or second.is_reduction)
    one, other = rules.horizontal_key(first), rules.horizontal_key(second)
    return rules.fuses_horizontally(first, second) and one == other


def _common_space(rules: Rules, first: Unit, second: Unit) -> Fusion | str:
    if not _axes_suffice(first, second):
        return _explained("their iteration spaces have different extents", first, second)
    reason = "no buffer is accessed by both in a way that matches their loops"
    tried: set[tuple[IndexLike, IndexLike]] = set()
    anchors = _anchors(first, second)
    if not any(name in second.seen for name in first.seen) and _without_sharing(rules, first, second):
        anchors = [(0, 0)]
    for a, b in anchors:
        if (a, b) in tried:
            continue
        tried.add((a, b))
        if len(tried) > 6:
            break
        match = rules.match(first, second, a, b)
        if match is None:
            continue
        answer = _check(rules, first, second, match)
        if isinstance(answer, Fusion):
            return answer
        reason = answer
    return _explained(reason, first, second)


def _explained(reason: str, first: Unit, second: Unit) -> str:
    detail = mismatch(first, second)
    return f"{reason} ({detail})" if detail else reason


def _axes_suffice(first: Unit, second: Unit) -> bool:
    """A necessary condition that costs little: the totals of the two spaces can be the same."""
    total = [product(axis_size(a) for a in (*u.space.axes, *u.space.raxes)) for u in (first, second)]
    if total[0] == total[1]:
        return True
    outer = [product(axis_size(a) for a in u.space.axes) for u in (first, second)]
    loops = [bool(u.space.raxes) for u in (first, second)]
    return (loops[0] and not loops[1] and outer[0] == total[1]) or (
        loops[1] and not loops[0] and outer[1] == total[0]
    )


def _anchors(first: Unit, second: Unit) -> list[tuple[IndexLike, IndexLike]]:
    """Pairs of indices of shared buffers to match the loops by: flow of values first, then the larger
    accesses.
    """
    found: list[tuple[tuple[int, int], int, IndexLike, IndexLike]] = []
    for buffer, ours in first.seen.items():
        theirs = second.seen.get(buffer)
        if theirs is None:
            continue
        for a in ours:
            for b in theirs:
                if a.access.index is None or b.access.index is None:
                    continue
                flows = a.access.write or b.access.write
                rank = len(getattr(a.access.index, "terms", ()))
                found.append(((0 if flows else 1, -rank), len(found), a.access.index, b.access.index))
    found.sort(key=lambda item: item[:2])
    return [(a, b) for _, _, a, b in found]


def _check(rules: Rules, first: Unit, second: Unit, match: Match) -> Fusion | str:
    if (first.has_scan or second.has_scan) and len(match.space.raxes) != 1:
        return "the axis of a scan cannot be split"
    if "R" in (match.first_level, match.second_level) and (has_gemm(first) or has_gemm(second)):
        return "a GEMM shares its loop with nothing"
    left = remap(first, match.first, match.first_level)
    right = remap(second, match.second, match.second_level)
    mine: dict[str, list[UnitAccess]] = {}
    for item in left[1]:
        mine.setdefault(rules.roots[item.access.buffer], []).append(item)
    read = {(b.member, b.access.buffer, b.access.index) for b in right[1] if not b.access.write}
    for b in right[1]:
        updates = (b.member, b.access.buffer, b.access.index) in read
        for a in mine.get(rules.roots[b.access.buffer], ()):
            if not (a.access.write or b.access.write):
                continue
            reason = _conflict(a, b, updates)
            if reason:
                return reason
    reason = _loops_conflict(rules, first, second, match, left)
    if not reason and rules.target_info(first.backend, first.device).column_bytes:
        if divides_columns(rules.graph, first, second, match.space, (*left[1], *right[1]), rules.hint):
            reason = "vectors would run along short groups of columns"
    return reason or Fusion(left, right, match.space)


def _conflict(a: UnitAccess, b: UnitAccess, updates: bool) -> str:
    """Why two accesses of one storage, one of them a write, cannot be made at the same point; empty if they
    can.

    Args:
        updates: whether the node of `b` reads the elements that `b` accesses.
    """
    name = a.access.buffer
    if a.access.mode == b.access.mode == CHECK_MODE:
        return ""  # any of them may be stored
    if b.access.buffer != name:
        return f"{name} and {b.access.buffer} share storage"
    if a.access.index is None or b.access.index is None:
        return f"{name} is accessed at indices that are not known"
    if a.access.index != b.access.index:
        if a.access.write and b.access.write and disjoint(a.access.index, b.access.index):
            return ""
        return f"{name} is written at {a.access.index} and accessed at {b.access.index}"
    if a.access.write and b.access.write and not updates:
        return f"{name} is written twice"  # where in a kernel a store is made depends on what it stores
    if a.access.write and a.level == "R" and b.level == "P":
        return f"{name} is complete only after the loop that writes it"
    return ""


def _checks_alone(unit: Unit) -> bool:
    """Whether all that a unit does is to check what data give."""
    return all(isinstance(m.node, Scatter) and m.node.mode == CHECK_MODE for m in unit.members)


def _loops_conflict(rules: Rules, first: Unit, second: Unit, match: Match, left: Half) -> str:
    """Refuse a second loop at few parallel points: in a kernel of its own, each such loop can be divided
    among cores; a sequence of them at one point cannot.
    """
    if not match.space.raxes or not (first.is_reduction or second.is_reduction):
        return ""
    if _checks_alone(first) or _checks_alone(second):
        return ""  # they have no loop of their own
    inner_second = match.second_level == "R" or (match.second_level is None and second.is_reduction)
    inner_first = match.first_level == "R" or (match.first_level is None and first.is_reduction)
    if not (inner_first and inner_second):
        return ""
    rows = rules.hint(product(axis_size(a) for a in match.space.axes))
    length = rules.hint(product(axis_size(a) for a in match.space.raxes))
    target = rules.target_info(first.backend, first.device)
    if target.scans_look_back and (first.has_scan or second.has_scan) and target.splits(rows, length):
        # a backend that spreads a scan over the device does so with pointwise work, and with nothing else
        if not (first.is_reduction and second.is_reduction):
            return ""
        if not (first.has_scan and second.has_scan):
            return "a reduction would keep a scan from being spread over the device"
    if first.is_reduction and second.is_reduction and not second.before & first.bits:
        return ""
    if (first.has_scan or second.has_scan) and first.is_reduction and second.is_reduction:
        if length * _WIDEST > target.row_bytes:
            return "the result of a scan cannot be stored for another loop over so long a row"
    if rows < target.few_rows and length > target.long_row:
        return "there are too few parallel points to run several loops at each"
    limit = target.column_bytes
    if first.has_scan or second.is_reduction:
        return ""  # what reads a scan's results does so in its loop
    if limit and _strip_bytes(rules, left, match.space, target.lanes) > limit:
        return "columns so long leave the caches before a second loop reads them"
    return ""


def _strip_bytes(rules: Rules, half: Half, space: Space, most: int) -> int:
    """Bytes that a loop reads at `most` neighbouring parallel points, where memory is contiguous along
    these.
    """
    total, loop = 0, rules.hint(product(axis_size(a) for a in space.raxes))
    names = [axis_name(a) for a in space.raxes]
    for item in half[1]:
        access = item.access
        if access.write or access.index is None or all(coefficient(access.index, n) == 0 for n in names):
            continue
        if any(coefficient(access.index, n) == 1 for n in names):
            return 0
        along = [a for a in space.axes if coefficient(access.index, axis_name(a)) == 1]
        dtype = rules.graph.buffers[access.buffer].dtype
        if along and dtype is not None:
            total += loop * min(most, rules.hint(axis_size(along[0]))) * dtype.itemsize
    return total


def passes_data(rules: Rules, first: Unit, second: Unit) -> bool:
    """Whether one of two units reads memory that the other writes, rather than writing beside it."""
    stored = [{rules.roots[name] for name in unit.writes} for unit in (first, second)]
    return any(rules.roots[name] in stored[1] for name in first.reads) or any(
        rules.roots[name] in stored[0] for name in second.reads
    )


def _share_cache_lines(left: tuple[UnitAccess, ...], right: tuple[UnitAccess, ...]) -> bool:
    """Whether both write to interleaved elements of a buffer: one kernel writes each cache line once."""
    mine = [a.access for a in left if a.access.write]
    for theirs in (b.access for b in right if b.access.write):
        for own in mine:
            if own.buffer == theirs.buffer and own.index is not None and theirs.index is not None:
                if interleaved(own.index, theirs.index):
                    return True
    return False


def _share_reads(left: tuple[UnitAccess, ...], right: tuple[UnitAccess, ...]) -> bool:
    """Whether both read some element of a buffer at the same point."""
    mine = {(a.access.buffer, a.access.index) for a in left if a.access.index is not None}
    return any((b.access.buffer, b.access.index) in mine for b in right if b.access.index is not None)


def disjoint(a: IndexLike, b: IndexLike) -> bool:
    """Whether two indices of equal form are disjoint: at no two points are they equal. Those of tensors that
    are concatenated are: they differ by a constant that inner axes do not reach and outer ones step over.
    """
    away = b - a
    if not isinstance(a, Index) or not isinstance(away, int) or not away:
        return False
    distance, span, outer = abs(away), 0, 0
    for atom in atoms(a):
        step, size = coefficient(a, atom.name), atom.args[0] if atom.kind == "axis" else None
        if not isinstance(step, int) or not isinstance(size, int):
            return False
        if abs(step) > distance:
            outer = gcd(outer, step)
        else:
            span += abs(step) * (size - 1)
    return span < distance and (not outer or distance + span < outer)


def interleaved(a: IndexLike, b: IndexLike) -> bool:
    """Whether two indices of equal form lie between the steps of every axis, as those of tensors that are
    stacked along the last dimension do: they share cache lines.
    """
    away = b - a
    if not isinstance(a, Index) or not isinstance(away, int) or not away:
        return False
    steps = [coefficient(a, atom.name) if atom.kind == "axis" else None for atom in atoms(a)]
    return all(isinstance(step, int) and abs(step) > abs(away) for step in steps)


def pair_of(
    graph: Graph,
    first: Unit,
    second: Unit,
    backend: str,
    target: TargetInfo,
    hint: Callable[[IndexLike], int],
) -> FusionPair:
    """What rules get about two units whose kernel `backend` would generate."""
    touched = first.seen.keys() | second.seen.keys()
    spaces = [tuple(hint(_extent(axes)) for axes in (u.space.axes, u.space.raxes)) for u in (first, second)]
    iterations = max(points * loop for points, loop in spaces)
    return FusionPair(
        tuple(member.node for member in first.members),
        tuple(member.node for member in second.members),
        first.device,
        backend,
        target,
        points=max(points for points, _ in spaces),
        loop=max(loop for _, loop in spaces),
        shared_bytes=shared_bytes(graph, first, second, hint),
        touched_bytes=nbytes(graph, touched, hint),
        buffers=len(touched),
        streams=sum(hint(graph.buffers[name].numel) >= iterations for name in touched),
    )


def _extent(axes: Sequence[Index]) -> IndexLike:
    return product(axis_size(one) for one in axes)
