"""The schedule stage: a graph's nodes become ordered launches and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

from polyfuse.base.settings import Settings
from polyfuse.base.text import NO_TEXTS, PassTexts
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Collective, ExternCall, LoopNode
from polyfuse.ir.text.print import text
from polyfuse.plugin import Backend, FusionRules, TargetInfo
from polyfuse.plugin.session.fusion_rules import NO_RULES
from polyfuse.runtime.devices.registry import device_of
from polyfuse.schedule.accumulated_gemms import accumulate
from polyfuse.schedule.added_where_read import add_where_read
from polyfuse.schedule.column_values import store_column_values
from polyfuse.schedule.deps import Dependencies, dependencies, live_graph, storage_roots
from polyfuse.schedule.fusion.fuse import Fuel, fuse, link, order_units, unit_edges
from polyfuse.schedule.fusion.legality import Rules
from polyfuse.schedule.fusion.units import Unit, UnitSpaces, call_unit, loop_unit
from polyfuse.schedule.in_place_outputs import write_in_place
from polyfuse.schedule.kernels.aliasing import reuse_in_place
from polyfuse.schedule.kernels.alignment import aligned_buffers
from polyfuse.schedule.kernels.groups import group_launches
from polyfuse.schedule.kernels.kernelize import KernelContext, SharedKernels
from polyfuse.schedule.kernels.lifetimes import kernel_local, last_uses
from polyfuse.schedule.overlap.communication import (
    Overlap,
    communication_bits,
    overlap_units,
    started_in_order,
    waits_at_once,
)
from polyfuse.schedule.peak.divide import allowed, divisions, peak_of
from polyfuse.schedule.peak.live import live
from polyfuse.schedule.peak.order import lower_peak
from polyfuse.schedule.reductions.gemm_reductions import detached_reductions, split_epilogue_reductions
from polyfuse.schedule.reductions.repeated_rows import repeat_rows
from polyfuse.schedule.reductions.split import split_reductions
from polyfuse.schedule.result import Call, Decision, Launch, Schedule, Unfused
from polyfuse.symbolic import IndexLike, bounds, free_symbols
from polyfuse.symbolic.text import evaluate

_DIVISIONS = 4
"""How often kernels are divided because they need more memory than their nodes one by one."""

UNBACKED_HINT = 4096
"""Example value of an unbacked symbol."""

_Backends = Callable[[str], Iterable[Backend]]
_Rules = Callable[[str, str], FusionRules]


def _no_rules(backend: str, device_type: str) -> FusionRules:
    return NO_RULES


def schedule_graph(
    graph: Graph,
    settings: Settings,
    backends: _Backends,
    claimed: Mapping[str, Backend],
    unfused: Sequence[Unfused] = (),
    epilogue_reductions: frozenset[str] = frozenset(),
    rules: _Rules = _no_rules,
    texts: PassTexts = NO_TEXTS,
) -> Schedule:
    """Order, fuse and lay out `graph`.

    Args:
        backends: backends for a device type, in the order in which they are asked.
        claimed: who generates each loop, by the node's name (`claim_nodes`).
        unfused: nodes that are not fused, because they are faster so.
        epilogue_reductions: names of those that are begun in the kernel of the GEMM whose results they read.
        rules: plugins' fusion rules for a backend on a device type.
        texts: records the graph before and after each pass.
    """
    plain = settings.with_options(overlap_collectives=False)
    given = claimed, unfused, epilogue_reductions, rules, texts
    if not settings.overlap_collectives or not any(isinstance(node, Collective) for node in graph.nodes):
        return _scheduled(graph, plain, backends, *given)[0]
    # what runs beside a collective is no part of a kernel that waits for it: that pays only if much is hidden
    schedule, overlap = _scheduled(graph, settings, backends, *given)
    usual, found = _scheduled(graph, plain, backends, *given)
    if overlap.seconds < found.usual_seconds:
        return replace(schedule, decisions=(*schedule.decisions, overlap.summary(found)))
    return replace(usual, decisions=(*usual.decisions, found.unchanged()))


def _scheduled(
    graph: Graph,
    settings: Settings,
    backends: _Backends,
    claimed: Mapping[str, Backend],
    unfused: Sequence[Unfused],
    epilogue_reductions: frozenset[str],
    rules: _Rules,
    texts: PassTexts,
) -> tuple[Schedule, Overlap]:
    """A schedule, with collectives overlapped or in the graph's order, and how long they are exposed."""
    hint = _hints(graph)
    whole: dict[str, Decision] = {}
    counts_memory = _counts_memory(graph, settings)

    def fused_without(apart: Sequence[Unfused]) -> _Fused:
        begun = epilogue_reductions.difference(whole)
        return _fuse(graph, settings, claimed, apart, begun, hint, rules, texts)

    for _ in range(len(epilogue_reductions) + 1):
        fused = fused_without(unfused)
        detached = detached_reductions(fused.units)
        if not detached:
            break
        whole.update(detached)
    if counts_memory:
        fused = fused.within(fused_without)
    return _in_order(fused, settings, backends, hint, whole, counts_memory)


def _in_order(
    fused: _Fused,
    settings: Settings,
    backends: _Backends,
    hint: Callable[[IndexLike], int],
    whole: Mapping[str, Decision],
    counts_memory: bool,
) -> tuple[Schedule, Overlap]:
    """The steps of fused units, in the order in which they run."""
    rewritten, decisions = fused.context, fused.decisions
    graph, roots = rewritten.graph, rewritten.roots
    units = fused.ordered
    removed = kernel_local(graph, units, roots)
    communicates = any(isinstance(node, Collective) for node in graph.nodes)
    # an order that overlaps by itself, as that of chunks, is as it should be
    if counts_memory or (communicates and settings.reuse_buffers and waits_at_once(units)):
        edges = started_in_order(units, unit_edges(units, fused.deps))
        units = [units[i] for i in lower_peak(edges, live(rewritten, units, removed))]
    overlap = Overlap(units, [])
    if communicates:
        first = cache(partial(_first_target_info, backends))
        edges = unit_edges(units, fused.deps)
        overlap = overlap_units(units, edges, rewritten, settings, removed, first)
    if settings.overlap_collectives:
        units = overlap.units
        decisions.extend(overlap.decisions)
    decisions.extend(Decision("local", name, "", "only one kernel needs it") for name in sorted(removed))
    context = KernelContext(
        hint,
        graph.symbol_hints,
        settings.loop_ordering,
        settings.numerics,
        fused.context.target_info,
        settings.deterministic == "on",
    )
    aligned = aligned_buffers(graph, settings.size_asserts)
    kernels = SharedKernels(context, graph.buffers, removed, aligned)
    steps = [_step(unit, i, kernels) for i, unit in enumerate(units)]
    last = last_uses(graph, steps, removed, roots)
    if settings.inplace:
        steps = reuse_in_place(graph, steps, last, roots, decisions)
    if settings.fusion and not (settings.overlap_collectives or settings.benchmark_fusion):
        steps = group_launches(steps, fused.context, decisions)
        last = last_uses(graph, steps, removed, roots)
    made = Schedule(graph, tuple(steps), tuple(sorted(removed)), last, (*decisions, *whole.values()))
    return made, overlap


def _counts_memory(graph: Graph, settings: Settings) -> bool:
    """Whether the peak of memory decides between fusions and between orders.

    So it does on the host, where the copies that libraries make are known. Between orders it also decides
    where processes communicate, if nothing runs beside that in the program's order.
    """
    communicates = any(isinstance(node, Collective) for node in graph.nodes)
    on_host = all(not b.device or device_of(b.device).is_host for b in graph.buffers.values())
    return settings.reuse_buffers and on_host and not communicates


@dataclass(frozen=True)
class _Fused:
    """The units of a graph, and what the next steps need of the search for them. `apart`: single nodes."""

    context: Rules
    units: list[Unit]
    deps: Dependencies
    decisions: list[Decision]
    apart: tuple[Unit, ...]

    @cached_property
    def ordered(self) -> list[Unit]:
        """The units in the order in which they run."""
        return order_units(self.units, self.deps)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """Most bytes in use at once, and the position of the unit that runs then."""
        context = self.context
        removed = kernel_local(context.graph, self.ordered, context.roots)
        return peak_of(context, self.ordered, removed)

    def within(self, again: Callable[[Sequence[Unfused]], _Fused]) -> _Fused:
        """The units, divided where they need more memory than their nodes one by one."""
        best, limit = self, allowed(peak_of(self.context, self.apart, ())[0])
        unfused = list(self.context.unfused)
        for _ in range(_DIVISIONS):
            least, at = best.peak
            found = divisions(best.context, best.ordered, at) if least > limit else []
            if not found:
                break
            unfused += found
            tried = again(unfused)
            if tried.peak[0] >= least or detached_reductions(tried.units):
                break
            best = tried
        return best


def _fuse(
    graph: Graph,
    settings: Settings,
    claimed: Mapping[str, Backend],
    unfused: Sequence[Unfused],
    epilogue_reductions: frozenset[str],
    hint: Callable[[IndexLike], int],
    offered: _Rules,
    texts: PassTexts,
) -> _Fused:
    """Rewrite the nodes of a graph for the device, then fuse them."""
    decisions: list[Decision] = []
    by_name = {backend.name: backend for backend in claimed.values()}
    target_info = cache(lambda name, device: by_name[name].target_info(device))
    texts.begin(lambda: text(graph))
    begun = epilogue_reductions if settings.epilogue_fusion else frozenset()
    graph, owners = split_epilogue_reductions(graph, claimed, begun, decisions)
    texts.note("split-epilogue-reductions", lambda: text(graph))
    graph, owners = split_reductions(graph, owners, target_info, hint, decisions, settings)
    texts.note("split-reductions", lambda: text(graph))
    graph, owners = repeat_rows(graph, owners, target_info, decisions)
    texts.note("repeat-rows", lambda: text(graph))
    graph, owners = store_column_values(graph, owners, target_info, hint, decisions)
    texts.note("store-column-values", lambda: text(graph))
    graph = add_where_read(graph, owners, target_info, decisions)
    texts.note("add-where-read", lambda: text(graph))
    graph = write_in_place(graph, decisions, exact=settings.numerics == "eager")
    texts.note("write-in-place", lambda: text(graph))
    if settings.numerics != "eager":
        graph = accumulate(graph, decisions)
        texts.note("accumulate", lambda: text(graph))
    graph = live_graph(graph, decisions)
    texts.note("remove-dead", lambda: text(graph))
    roots = storage_roots(graph)
    deps = dependencies(graph, roots)
    spaces = UnitSpaces()
    units = [
        loop_unit(node, i, owners[node.name].name, graph.buffers[node.writes()[0]].device, spaces, found)
        if isinstance(node, LoopNode)
        else call_unit(node, i)
        for i, (node, found) in enumerate(zip(graph.nodes, deps.accesses, strict=True))
    ]
    link(units, deps)
    rules = Rules(graph, settings, by_name, target_info, roots, hint, offered, tuple(unfused))
    if settings.overlap_collectives:
        rules = replace(rules, communication=communication_bits(graph.nodes))
    apart = tuple(units)
    if settings.fusion:
        units = fuse(units, rules, Fuel(settings.fuel), decisions, texts)
    return _Fused(rules, units, deps, decisions, apart)


def _hints(graph: Graph) -> Callable[[IndexLike], int]:
    memo: dict[IndexLike, int] = {}

    def hint(index: IndexLike) -> int:
        if isinstance(index, int):
            return index
        found = memo.get(index)
        if found is None:
            values = {s: graph.symbol_hints.get(s, UNBACKED_HINT) for s in free_symbols(index)}
            try:
                found = evaluate(index, values)
            except KeyError:
                found = bounds(index)[1] or UNBACKED_HINT
            memo[index] = found
        return found

    return hint


def _first_target_info(backends: Callable[[str], Iterable[Backend]], device: str) -> TargetInfo:
    """What the first backend for a device says about it."""
    return next((backend.target_info(device) for backend in backends(device.partition(":")[0])), TargetInfo())


def _step(unit: Unit, number: int, kernels: SharedKernels) -> Launch | Call:
    reads, writes = (
        tuple(name for name in names if name not in kernels.removed) for names in (unit.reads, unit.writes)
    )
    if unit.is_call:
        node = unit.members[0].node
        assert isinstance(node, ExternCall)
        return Call(node, reads, writes)
    kernel, operands = kernels.kernel(unit)
    nodes = tuple(m.node for m in unit.members)
    used = {o for o in operands if isinstance(o, str)}
    return Launch(
        f"launch{number}",
        kernel,
        operands,
        nodes,
        unit.backend,
        tuple(b for b in reads if b in used),
        writes,
        alignment=kernels.context.target_info(unit.backend, unit.device).alignment,
        merges=tuple((_names(unit, first), _names(unit, second)) for first, second in unit.merges),
    )


def _names(unit: Unit, bits: int) -> frozenset[str]:
    """The nodes of a unit at these positions."""
    return frozenset(m.node.name for m in unit.members if bits >> m.position & 1)
