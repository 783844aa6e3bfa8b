"""Independent launches become one: list operators whose entries differ in size, such as the update of
all parameters of a model. What one launch computes then is a kernel of several parts (`Kernel.parts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyfuse.ir.expr import loads
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Alias, Kernel, KernelArg, KernelPart
from polyfuse.ir.nodes import LoopNode, Node, Origin, Reduction
from polyfuse.schedule.context import ScheduleContext
from polyfuse.schedule.fusion.score import nbytes
from polyfuse.schedule.result import Call, Decision, Launch
from polyfuse.symbolic import (
    Index,
    IndexLike,
    atoms,
    axis_name,
    axis_size,
    free_axes,
    substitute,
    symbol,
)

_FEW = 8
"""Launches that are worth grouping where a launch costs little."""
_HELD = 1 << 20
"""Bytes of intermediate tensors that a group may hold at once where launches cost little."""

_MATVECS = 4
"""How many launches' worth of bytes a matrix-vector multiplication may read: where one such launch ends and
the next begins, memory idles.
"""

_FEW_ROWS = 16
"""The same of a matrix multiplication with few rows, a tile of whose weight is what a program reads in any
case.
"""
_MATMULS = 4
"""How many of them are one launch: each has tiles of its own, for which there is memory on a device."""
_WEIGHT = 4
"""A matrix multiplication has few rows where its largest tensor is all but one in so many of its bytes."""

Step = Launch | Call


@dataclass
class _Group:
    """Launches that depend on none of each other, of one backend on one device."""

    backend: str
    device: str
    launches: list[Launch] = field(default_factory=list)
    held: int = 0
    arguments: int = 0


def group_launches(steps: Sequence[Step], context: ScheduleContext, decisions: list[Decision]) -> list[Step]:
    """The steps with launches grouped, in an order that keeps every dependency.

    Between two calls, launches are put into levels, as early as what they depend on permits; those of a level
    that one backend groups (`Backend.may_group`) are launched together. Calls stay where they are.
    """
    out: list[Step] = []
    between: list[Launch] = []
    for step in steps:
        if isinstance(step, Launch):
            between.append(step)
            continue
        out += _grouped(between, context, decisions)
        between = []
        out.append(step)
    return out + _grouped(between, context, decisions)


def _grouped(launches: Sequence[Launch], context: ScheduleContext, decisions: list[Decision]) -> list[Step]:
    able = [_is_able(step, context) for step in launches]
    if sum(able) < 2:
        return list(launches)
    levels = _levels(launches, context.roots)
    groups: dict[tuple[int, str, str, bool], list[_Group]] = {}
    alone: dict[int, list[Launch]] = {}
    for step, level, groupable in zip(launches, levels, able, strict=True):
        if not groupable:
            alone.setdefault(level, []).append(step)
            continue
        # loops run best in programs that have no room for tiles
        key = level, step.backend, _device(step, context.graph), any(map(_multiplies, step.nodes))
        _add(groups.setdefault(key, []), step, context, key[2])
    found = [group for several in groups.values() for group in several]
    if not any(len(group.launches) >= _enough(group, context) for group in found):
        return list(launches)
    out: list[Step] = []
    for level in sorted(set(levels)):
        out += alone.get(level, ())
        for (at, *_), several in groups.items():
            for group in several if at == level else ():
                if len(group.launches) < _enough(group, context):
                    out += group.launches
                    continue
                out.append(_merged(group.launches))
                names = [step.name for step in group.launches]
                why = f"they depend on none of each other, and are {len(names)} parts of one kernel"
                decisions.append(Decision("group", names[0], names[-1], why))
    return out


def _is_able(step: Launch, context: ScheduleContext) -> bool:
    """Whether a launch may be a part of another; autotuned ones and empty ones stay alone."""
    if step.choice is not None or not step.writes or step.kernel.parts:
        return False
    limit = context.target_info(step.backend, _device(step, context.graph)).launch_bytes
    if limit and not context.settings.horizontal_fusion:
        if any(node.rsizes for node in step.nodes if isinstance(node, LoopNode)):
            # what is large and has loops of its own runs best alone
            each = [nbytes(context.graph, (name,), context.hint) for name in (*step.reads, *step.writes)]
            if any(map(_multiplies_row, step.nodes)):
                limit *= _MATVECS
            elif any(map(_multiplies, step.nodes)) and _WEIGHT * max(each) >= (_WEIGHT - 1) * sum(each):
                limit *= _FEW_ROWS
            if sum(each) > limit:
                return False
    return bool(context.backends[step.backend].may_group(step.kernel))


def _multiplies(node: Node) -> bool:
    """Whether a node is a matrix multiplication."""
    return isinstance(node, Reduction) and node.kind == "dot"


def _multiplies_row(node: Node) -> bool:
    """Whether a node is a matrix-vector multiplication (GEMV)."""
    if not isinstance(node, Reduction) or node.kind != "sum" or len(node.raxes) != 1:
        return False
    outer = {axis_name(a) for a in node.axes if axis_size(a) != 1}
    inside = axis_name(node.raxes[0])
    along = [names for item in loads(*node.values) if inside in (names := set(free_axes(item.index)))]
    return any(outer <= names for names in along) and any(outer.isdisjoint(names) for names in along)


def _levels(launches: Sequence[Launch], roots: Mapping[str, str]) -> list[int]:
    """How many launches must come before each, one after the other."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    levels: list[int] = []
    for step in launches:
        # the storage of an input that a result takes over is written too
        writes = {roots[name] for name in (*step.writes, *(old for _, old in step.inplace))}
        reads = {roots[name] for name in step.reads}
        before = [written.get(name, -1) for name in (*writes, *reads)] + [
            read.get(name, -1) for name in writes
        ]
        level = max(before) + 1
        levels.append(level)
        for found, names in ((read, reads), (written, writes)):
            for name in names:
                found[name] = max(level, found.get(name, -1))
    return levels


def _add(groups: list[_Group], step: Launch, context: ScheduleContext, device: str) -> None:
    """Put a launch into the last of the groups of its kind, or into a new one where that is full."""
    held = nbytes(context.graph, _temporary(step, context.graph), context.hint)
    limit = context.target_info(step.backend, device).launch_bytes or _HELD
    if context.settings.horizontal_fusion:
        held = 0
    most = context.backends[step.backend].group_arguments
    if groups:
        last = groups[-1]
        fits = last.arguments + len(step.operands) <= most and (not held or last.held + held <= limit)
        fits = fits and not (len(last.launches) >= _MATMULS and any(map(_multiplies, step.nodes)))
        if fits:
            last.launches.append(step)
            last.held += held
            last.arguments += len(step.operands)
            return
    groups.append(_Group(step.backend, device, [step], held, len(step.operands)))


def _enough(group: _Group, context: ScheduleContext) -> int:
    """Launches from which on grouping is worth it."""
    costly = context.target_info(group.backend, group.device).launch_bytes > 0
    return 2 if costly or context.settings.horizontal_fusion else _FEW


def _temporary(step: Launch, graph: Graph) -> list[str]:
    return [name for name in step.writes if graph.buffers[name].kind == "temp"]


def _device(step: Launch, graph: Graph) -> str:
    return graph.buffers[step.writes[0]].device


def _merged(launches: Sequence[Launch]) -> Launch:
    """One launch of a kernel with a part for each of several."""
    numbers: dict[str, int] = {}
    sizes: dict[IndexLike, str] = {}
    args: dict[str, tuple[KernelArg, str | IndexLike]] = {}
    parts: list[KernelPart] = []
    aliases: list[Alias] = []
    for step in launches:
        names: dict[str, str] = {}
        pairs = list(zip(step.kernel.args, step.operands, strict=True))
        for arg, operand in pairs:
            if isinstance(operand, str):
                continue
            if operand not in sizes:
                sizes[operand] = f"s{len(sizes)}"
            names[arg.name] = sizes[operand]
            args.setdefault(sizes[operand], (replace(arg, name=sizes[operand]), operand))
        for arg, operand in pairs:
            if isinstance(operand, str):
                number = numbers[arg.kind] = numbers.get(arg.kind, -1) + 1
                name = names[arg.name] = f"{arg.kind}{number}"
                numel = None if arg.numel is None else _renamed(arg.numel, names)
                args[name] = replace(arg, name=name, numel=numel), operand
        parts.append(KernelPart(step.kernel, tuple(names[arg.name] for arg in step.kernel.args)))
        aliases += [Alias(names[pair.output], names[pair.input]) for pair in step.kernel.aliases]
    rank = {"in": 0, "inout": 1, "out": 2, "size": 3}
    ordered = sorted(args.values(), key=lambda item: rank[item[0].kind])
    origins: dict[Origin, None] = {o: None for step in launches for o in step.kernel.origins}
    first = launches[0].kernel
    kernel = Kernel(
        f"grouped_{first.name.removeprefix('fused_')}",
        first.device,
        (),
        (),
        tuple(arg for arg, _ in ordered),
        (),
        (),
        deterministic=any(step.kernel.deterministic for step in launches),
        numerics=first.numerics,
        aliases=tuple(aliases),
        parts=tuple(parts),
        origins=tuple(origins),
    )
    return Launch(
        launches[0].name,
        kernel,
        tuple(operand for _, operand in ordered),
        tuple(node for step in launches for node in step.nodes),
        launches[0].backend,
        tuple(dict.fromkeys(name for step in launches for name in step.reads)),
        tuple(dict.fromkeys(name for step in launches for name in step.writes)),
        tuple(pair for step in launches for pair in step.inplace),
        max(step.alignment for step in launches),
    )


def _renamed(numel: IndexLike, names: Mapping[str, str]) -> IndexLike:
    """An extent in terms of the sizes that the whole kernel has."""
    if not isinstance(numel, Index):
        return numel
    known = {a.name: symbol(names[a.name], a.lo, a.hi) for a in atoms(numel) if a.name in names}
    return substitute(numel, known)
