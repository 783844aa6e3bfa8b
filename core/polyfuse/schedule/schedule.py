"""The schedule stage: a graph's nodes become ordered launches and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from polyfuse.base.settings import Settings
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import ExternCall, LoopNode, Node
from polyfuse.plugin import Backend, TargetInfo
from polyfuse.rewrite import simplifier
from polyfuse.schedule.access import accesses
from polyfuse.schedule.deps import dependencies, live_nodes, storage_roots
from polyfuse.schedule.fusion.fuse import Fuel, fuse, link, order_units, unit_edges
from polyfuse.schedule.fusion.legality import Rules
from polyfuse.schedule.fusion.space import fresh_axes
from polyfuse.schedule.fusion.units import Unit, call_unit, loop_unit
from polyfuse.schedule.in_place_outputs import place_results
from polyfuse.schedule.kernels.aliasing import reuse_in_place
from polyfuse.schedule.kernels.alignment import aligned_buffers
from polyfuse.schedule.kernels.claiming import claim, node_text
from polyfuse.schedule.kernels.kernelize import KernelContext, build_kernel
from polyfuse.schedule.kernels.lifetimes import kernel_local, last_uses
from polyfuse.schedule.overlap.communication import communication_bits, overlap_units
from polyfuse.schedule.reductions.gemm_reductions import fold_results, folds_alone
from polyfuse.schedule.reductions.split import split_reductions
from polyfuse.schedule.result import Apart, Call, Decision, Launch, Schedule, UnclaimedError
from polyfuse.symbolic import IndexLike, bounds, free_symbols
from polyfuse.symbolic.text import evaluate

UNBACKED_HINT = 4096
"""Example extent of a size that only the data decide."""


def schedule_graph(
    graph: Graph,
    settings: Settings,
    backends: Callable[[str], Iterable[Backend]],
    chosen: Mapping[str, Backend] | None = None,
    apart: Sequence[Apart] = (),
    folded: frozenset[str] = frozenset(),
) -> Schedule:
    """Order, fuse and lay out `graph`.

    Args:
        backends: backends for a device type, in the order in which they are asked.
        chosen: backends of single nodes, by the node's name: those are not asked.
        apart: nodes that are not fused, because they are faster so.
        folded: names of reductions that are begun in the kernel of the product whose results they read.

    Raises:
        UnclaimedError: no backend claims some of the nodes.
    """
    decisions: list[Decision] = []
    hint = _hints(graph)
    given = graph
    graph, owners = fold_results(graph, chosen or {}, folded, decisions)
    graph = split_reductions(graph, backends, hint, decisions, settings.deterministic != "on")
    graph = place_results(graph, decisions, exact=settings.numerics == "eager")
    roots = storage_roots(graph)
    deps = dependencies(graph, graph.nodes, roots)
    alive = live_nodes(graph, graph.nodes, deps, roots)
    for node, lives in zip(graph.nodes, alive, strict=True):
        if not lives:
            decisions.append(Decision("remove", node.name, "", "nothing uses what it computes"))
    fresh = fresh_axes()
    by_name: dict[str, Backend] = {}
    units: list[Unit] = []
    unclaimed: list[tuple[Node, str]] = []
    for position, node in enumerate(graph.nodes):
        if not alive[position]:
            continue
        if isinstance(node, LoopNode):
            device = _device_of(graph, node)
            backend = owners.get(node.name) or claim(
                graph, node, backends(device.split(":")[0]), decisions, settings
            )
            if isinstance(backend, str):
                unclaimed.append((node, backend))
                continue
            by_name[backend.name] = backend
            units.append(loop_unit(node, position, backend.name, backend.group(node), device, fresh))
        else:
            units.append(call_unit(node, position))
    if unclaimed:
        raise UnclaimedError(unclaimed, [node_text(graph, node) for node, _ in unclaimed])
    link(units, deps)
    target_info = cache(lambda name, device: by_name[name].target_info(device))
    rules = Rules(graph, settings, by_name, target_info, roots, hint, fresh, tuple(apart))
    if settings.overlap_collectives:
        rules = replace(rules, communication=communication_bits(graph.nodes))
    if settings.fusion:
        units = fuse(units, rules, Fuel(settings.fuel), decisions)
    alone = folds_alone(units)
    if alone:
        again = schedule_graph(given, settings, backends, chosen, apart, folded.difference(alone))
        return replace(again, decisions=(*again.decisions, *alone.values()))
    units = order_units(units, deps)
    removed = kernel_local(graph, units, roots)
    if settings.overlap_collectives:
        first = cache(partial(_first_target_info, backends))
        edges = unit_edges(units, deps)
        units, found = overlap_units(units, edges, graph, settings, removed, roots, first, hint)
        decisions.extend(found)
    decisions.extend(Decision("local", name, "", "only one kernel needs it") for name in sorted(removed))
    context = KernelContext(
        graph,
        removed,
        hint,
        simplifier(settings.numerics),
        settings.loop_ordering,
        settings.numerics,
        target_info,
        aligned_buffers(graph, settings.size_asserts),
        settings.deterministic == "on",
    )
    steps = [_step(unit, i, context) for i, unit in enumerate(units)]
    last = last_uses(graph, steps, removed, roots)
    if settings.inplace:
        steps = reuse_in_place(graph, steps, last, roots, decisions)
    return Schedule(graph, tuple(steps), tuple(sorted(removed)), last, tuple(decisions))


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


def _device_of(graph: Graph, node: Node) -> str:
    return graph.buffers[node.writes()[0]].device


def _step(unit: Unit, number: int, context: KernelContext) -> Launch | Call:
    reads = tuple(
        dict.fromkeys(
            a.access.buffer
            for a in unit.accesses
            if not a.access.write and a.access.buffer not in context.removed
        )
    )
    writes = tuple(
        dict.fromkeys(
            a.access.buffer
            for a in unit.accesses
            if a.access.write and a.access.buffer not in context.removed
        )
    )
    if unit.is_call:
        node = unit.members[0].node
        assert isinstance(node, ExternCall)
        return Call(node, reads, writes)
    kernel, operands = build_kernel(unit, context)
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
        alignment=context.target_info(unit.backend, unit.device).alignment,
    )


__all__ = ["accesses", "schedule_graph"]
