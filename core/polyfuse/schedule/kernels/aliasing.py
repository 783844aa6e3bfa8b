"""In-place storage: which outputs reuse the storage of an input that dies, the arguments of a kernel that may
alias, and the launches that pass them so.

That two arguments may be one memory is part of a kernel (`Kernel.aliases`), decided before code is generated.
Equal kernels stay equal: what one launch of a kernel needs, all launches of it permit. A code generator may
refuse pairs (`Source.refused_aliases`); memory is planned without these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from polyfuse.ir.aliasing import AliasRule
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.schedule.kernels.lifetimes import storage_key
from polyfuse.schedule.result import Call, Decision, Launch, Schedule
from polyfuse.symbolic import IndexLike


def reuse_in_place(
    graph: Graph,
    steps: Sequence[Launch | Call],
    last: Sequence[tuple[str, ...]],
    roots: Mapping[str, str],
    decisions: list[Decision],
) -> list[Launch | Call]:
    """The steps with outputs in the storage of inputs that die there, and with kernels that permit it."""
    alone: dict[str, int] = {}
    for name in graph.buffers:
        alone[roots[name]] = alone.get(roots[name], 0) + 1
    written: set[str] = set()
    found: list[tuple[Alias, ...]] = []
    permitted: dict[tuple[str, Kernel], dict[Alias, None]] = {}
    for step, dying in zip(steps, last, strict=True):
        pairs: tuple[Alias, ...] = ()
        if isinstance(step, Launch):
            candidates = frozenset(
                b
                for b in dying
                if graph.buffers[b].kind == "temp"
                and alone[roots[b]] == 1
                and b in step.reads
                and b not in step.writes
            )
            fresh = frozenset(b for b in step.writes if b not in written and graph.buffers[b].kind == "temp")
            if candidates and fresh:
                pairs = launch_aliases(graph, step.kernel, step.operands, candidates, fresh)
            permitted.setdefault((step.backend, step.kernel), {}).update(dict.fromkeys(pairs))
        found.append(pairs)
        written.update(step.writes)
    kernels = {
        key: replace(key[1], aliases=_in_order(key[1], pairs)) for key, pairs in permitted.items() if pairs
    }
    out: list[Launch | Call] = []
    for step, pairs in zip(steps, found, strict=True):
        if isinstance(step, Launch):
            inplace = _buffers(step, pairs)
            for output, source in inplace:
                reason = "the input dies here and is read before it is written"
                decisions.append(Decision("inplace", output, source, reason))
            step = replace(
                step, kernel=kernels.get((step.backend, step.kernel), step.kernel), inplace=inplace
            )
        out.append(step)
    return out


def launch_aliases(
    graph: Graph,
    kernel: Kernel,
    operands: Sequence[str | IndexLike],
    dying: frozenset[str],
    fresh: frozenset[str],
) -> tuple[Alias, ...]:
    """Arguments of a kernel that may be one memory in one launch: outputs that are new there, and inputs
    whose storage dies there.
    """
    names = {a.name: o for a, o in zip(kernel.args, operands, strict=True) if isinstance(o, str)}
    outputs = [a.name for a in kernel.args if a.kind == "out" and names.get(a.name) in fresh]
    inputs = [a.name for a in kernel.args if a.kind == "in" and names.get(a.name) in dying]
    keys = {name: storage_key(graph.buffers[names[name]]) for name in (*outputs, *inputs)}
    rule = AliasRule(kernel)
    found: list[Alias] = []
    for output in outputs:
        fitting = (Alias(output, source) for source in inputs if keys[source] == keys[output])
        pair = next((alias for alias in fitting if not rule.fault(alias)), None)
        if pair is not None:
            found.append(pair)
            inputs.remove(pair.input)
    return tuple(found)


def without_refused(
    schedule: Schedule, refused: Mapping[tuple[str, Kernel], Sequence[Alias]]
) -> tuple[Schedule, tuple[Decision, ...]]:
    """The schedule whose launches use no pair that their kernel's generator refused, and what that changed.

    Args:
        refused: by (backend that a launch was scheduled for, kernel).
    """
    if not any(refused.values()):
        return schedule, ()
    decisions: list[Decision] = []
    steps: list[Launch | Call] = []
    for step in schedule.steps:
        if isinstance(step, Launch):
            without = frozenset(_buffers(step, refused.get((step.backend, step.kernel), ())))
            for output, source in step.inplace:
                if (output, source) in without:
                    reason = "the kernel's code reads the input again after that"
                    decisions.append(Decision("unaliased", output, source, reason))
            step = replace(step, inplace=tuple(pair for pair in step.inplace if pair not in without))
        steps.append(step)
    return replace(schedule, steps=tuple(steps)), tuple(decisions)


def _buffers(step: Launch, pairs: Iterable[Alias]) -> tuple[tuple[str, str], ...]:
    """Pairs of arguments as the buffers that a launch passes."""
    names = {a.name: o for a, o in zip(step.kernel.args, step.operands, strict=True) if isinstance(o, str)}
    return tuple((names[p.output], names[p.input]) for p in pairs if p.output in names and p.input in names)


def _in_order(kernel: Kernel, pairs: Iterable[Alias]) -> tuple[Alias, ...]:
    """Pairs in the order of a kernel's arguments, so that equal kernels have equal text."""
    position = {arg.name: k for k, arg in enumerate(kernel.args)}
    return tuple(sorted(pairs, key=lambda pair: (position[pair.output], position[pair.input])))
