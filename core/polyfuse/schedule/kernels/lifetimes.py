"""Which buffers need no memory and when storage dies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyfuse.ir.communication import never_awaited
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer
from polyfuse.schedule.fusion.units import Unit
from polyfuse.schedule.result import Call, Launch
from polyfuse.symbolic import IndexLike

StorageKey = tuple[str, str, IndexLike]


def kernel_local(graph: Graph, units: Sequence[Unit], roots: Mapping[str, str]) -> frozenset[str]:
    """Buffers all of whose accesses lie in one unit that writes them once and plainly: they stay in
    registers.
    """
    shared: dict[str, int] = {}
    for name in graph.buffers:
        shared[roots[name]] = shared.get(roots[name], 0) + 1
    keep = set(graph.output_buffers())
    users: dict[str, set[int]] = {}
    for i, unit in enumerate(units):
        for name in unit.seen:
            users.setdefault(name, set()).add(i)
    out: set[str] = set()
    for i, unit in enumerate(units):
        if unit.is_call:
            continue
        for name, found in unit.seen.items():
            if (
                graph.buffers[name].kind != "temp"
                or name in keep
                or users[name] != {i}
                or shared[roots[name]] > 1
            ):
                continue
            writes = [a for a in found if a.access.write]
            if len(writes) == 1 and all(a.access.index is not None for a in found):
                out.add(name)
    return frozenset(out)


def last_uses(
    graph: Graph, steps: Sequence[Launch | Call], removed: Iterable[str], roots: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """Per step, the buffers whose storage is dead after it: inputs too, a graph output's never, nor what a
    collective uses that nothing waits for.
    """
    dead: set[str] = {roots[name] for name in (*graph.output_buffers(), *never_awaited(graph.nodes))}
    gone = set(removed)
    members: dict[str, list[str]] = {}
    for name in graph.buffers:
        members.setdefault(roots[name], []).append(name)
    seen: set[str] = set()
    out: list[tuple[str, ...]] = []
    used = {b for step in steps for b in (*step.reads, *step.writes)}
    for step in reversed(steps):
        row: list[str] = []
        for name in dict.fromkeys((*step.reads, *step.writes)):
            root = roots[name]
            if root in dead or root in seen or name in gone:
                continue
            seen.add(root)
            row.extend(m for m in members[root] if m in used and m not in gone)
        out.append(tuple(row))
    return tuple(reversed(out))


def storage_key(buffer: Buffer) -> StorageKey:
    """What must be equal for two buffers to share storage; sizes are compared as expressions."""
    return buffer.device, buffer.torch_dtype, buffer.storage
