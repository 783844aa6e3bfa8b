"""Which buffers need no memory, when storage dies, and which outputs may take a dying input's storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyfuse.ir.communication import never_awaited
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Buffer
from polyfuse.schedule.result import Call, Launch
from polyfuse.schedule.units import Unit
from polyfuse.symbolic import IndexLike


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


def storage_key(buffer: Buffer) -> tuple[str, str, IndexLike]:
    """Buffers with equal keys may take each other's place."""
    extent: IndexLike = 1
    for size, stride in zip(buffer.size, buffer.stride, strict=True):
        if size == 0:
            extent = 0
            break
        extent = extent + (size - 1) * stride
    return buffer.device, buffer.torch_dtype, extent


def inplace_pairs(
    graph: Graph,
    kernel: Kernel,
    operands: Sequence[str | IndexLike],
    dying: Iterable[str],
    fresh: Iterable[str],
) -> tuple[tuple[str, str], ...]:
    """(output, dying input) pairs for which `kernel` may write over what it reads.

    Every load of the input must be at the element that the store of the output writes, and come before it.
    """
    names = {
        arg.name: operand
        for arg, operand in zip(kernel.args, operands, strict=True)
        if isinstance(operand, str)
    }
    inputs = {
        a: n for a, n in names.items() if n in set(dying) and a.startswith("in") and not a.startswith("inout")
    }
    outputs = {a: n for a, n in names.items() if n in set(fresh) and a.startswith("out")}
    stores: dict[str, list[tuple[tuple[int, int], IndexLike, bool]]] = {}
    fetches: dict[str, list[tuple[tuple[int, int], IndexLike, bool]]] = {}
    for i, section in enumerate(kernel.sections):
        for j, stmt in enumerate(section.body):
            if stmt.op in ("load", "store"):
                plain = not stmt.attrs[2] and (
                    stmt.op == "load" or (stmt.attrs[3] == "set" and not stmt.attrs[4])
                )
                table = fetches if stmt.op == "load" else stores
                table.setdefault(stmt.attrs[0], []).append(((i, j), stmt.attrs[1], plain))
    pairs: list[tuple[str, str]] = []
    taken: set[str] = set()
    for out_arg, output in outputs.items():
        writes = stores.get(out_arg, [])
        if len(writes) != 1 or not writes[0][2]:
            continue
        at, index, _ = writes[0]
        for in_arg, source in inputs.items():
            if source in taken or storage_key(graph.buffers[source]) != storage_key(graph.buffers[output]):
                continue
            found = fetches.get(in_arg, [])
            if all(plain and where < at and element == index for where, element, plain in found):
                pairs.append((output, source))
                taken.add(source)
                break
    return tuple(pairs)
