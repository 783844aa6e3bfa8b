"""Schedules chosen from what is known of a kernel: where its lanes run, and what threads share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Scan, Statement
from polyfuse.kit import KernelFacts
from polyfuse.plugin import Config
from polyfuse_halide.codegen.ops import COST, MATH

CHOICES = ("lanes", "unroll", "grain", "serial")
"""What a configuration may say of a schedule."""

_SERIAL = 24_000
"""Rough price of a kernel, in additions of one element, below which one thread does it all."""
_GRAIN = 16_384
"""Points that one thread takes together at least."""
TILE = 16
"""Points of an axis that runs along neighbours in memory where the lanes do not."""
_TASKS = 8
"""Chunks that there should be at least, so that threads end at about the same time."""


@dataclass(frozen=True)
class Plan:
    """A schedule; its fields are those of `polyfuse_halide.library.stages.Schedule`."""

    kind: str
    lanes: int = 16
    unroll: int = 1
    fuse: int = 0
    group: int = 1
    chunk: int = 0
    shift: bool = False
    transpose: int = -1

    def text(self) -> str:
        """The schedule as text of a generated program."""
        options = [f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__ if name != "kind"]
        return f'Schedule("{self.kind}", {", ".join(options)})'


def pinned_choices(text: str) -> Config | None:
    """A configuration from text such as ``lanes=8 unroll=2``; None where it is empty.

    Raises:
        BackendUnavailableError: a word is none of a configuration.
    """
    values: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        if name not in CHOICES or not value.isdigit():
            raise BackendUnavailableError(
                f"the option halide.schedule says {word!r}",
                f"write names and numbers; names are {', '.join(CHOICES)}",
            )
        values[name] = int(value)
    return Config.of(**values) if values else None


def choose_plan(kernel: Kernel, lanes: int, config: Config | None) -> Plan:
    """The schedule of a kernel; `config` overrules single choices."""
    chosen, facts = config or Config(), KernelFacts.of(kernel)
    kind = access_kind(facts)
    plan = Plan(kind, lanes=chosen.get("lanes", lanes), shift=not _in_place(facts))
    if kind == "points":
        plan = replace(plan, transpose=transposed_axis(facts))
    sizes = example_sizes(facts, facts.axes)
    steps = prod(example_sizes(facts, facts.raxes))
    cost = max(1, sum(map(_price, facts.statements)))
    unroll = 1 if kind == "points" else 4
    plan = replace(plan, unroll=chosen.get("unroll", unroll))
    static = all(isinstance(size, int) for size in facts.sizes.values())
    if (static and prod(sizes) * steps * cost < _SERIAL) or chosen.get("serial"):
        return plan
    if kind == "points" and not sizes:
        return plan
    return _shared(plan, sizes, steps, chosen)


def _shared(plan: Plan, sizes: list[int], steps: int, chosen: Config) -> Plan:
    """The plan with threads: which axes they share, and how much each takes."""
    grain = chosen.get("grain", _GRAIN)
    if not sizes:
        # all that is left is what is stored in loops
        return replace(plan, fuse=1, chunk=grain)
    if plan.kind == "rows":
        outer, rest = list(sizes), steps
    elif plan.kind == "columns":
        wide = plan.lanes * plan.unroll
        outer, rest = [*sizes[:-1], -(-sizes[-1] // wide)], wide * steps
    elif plan.transpose >= 0:
        outer, rest = list(sizes[:-1]), sizes[-1] * TILE
        outer[plan.transpose] = -(-outer[plan.transpose] // TILE)
    else:
        outer, rest = list(sizes[:-1]), sizes[-1]
    chunk = 0
    if (
        plan.kind == "points"
        and plan.transpose < 0
        and (not outer or (rest >= 2 * grain and prod(outer) < _TASKS))
    ):
        chunk = grain
        outer.append(-(-rest // grain))
        rest = grain
    fuse, tasks = 1, max(outer[0], 1)
    while fuse < len(outer) and tasks < _TASKS:
        tasks *= max(outer[fuse], 1)
        fuse += 1
    each = rest * prod(outer[fuse:])
    return replace(plan, fuse=fuse, group=max(1, min(grain // max(each, 1), max(1, tasks // 4))), chunk=chunk)


def _price(stmt: Statement) -> int:
    return COST.get(stmt.op, 24 if stmt.op in MATH else 1)


def example_sizes(facts: KernelFacts, axes: Iterable[str]) -> list[int]:
    """The extent of each axis, or an example of it; at least one."""
    return [max(facts.hints[axis], 1) for axis in axes]


def _in_place(facts: KernelFacts) -> bool:
    """Whether a buffer is read and written, so that no element may be written twice."""
    read = {access.buffer for access in facts.accesses if not access.is_store}
    return bool(facts.kernel.aliases) or not read.isdisjoint(facts.written)


def access_kind(facts: KernelFacts) -> str:
    """Where neighbours in memory lie: along the last loop (`rows`), or along the last axis (`columns`)."""
    if not facts.raxes:
        return "points"
    if not facts.axes:
        return "rows"
    axis, raxis = facts.axes[-1], facts.raxes[-1]
    along, apart = _contiguous_accesses(facts, raxis, axis), _contiguous_accesses(facts, axis, raxis)
    if any(isinstance(stmt, Scan) for stmt in facts.statements):
        return "columns" if apart > along else "rows"
    if apart > along or (facts.hints[raxis] < 12 and facts.hints[axis] >= 16 and apart + along > 0):
        return "columns"
    return "rows"


def transposed_axis(facts: KernelFacts) -> int:
    """The axis along which something is contiguous that is not so along the last one; -1 if there is none."""
    if len(facts.axes) < 2 or facts.hints[facts.axes[-1]] < TILE:
        return -1
    for access in facts.all_accesses:
        if access.strides.get(facts.axes[-1], 0) in (0, 1, None):
            continue
        for number, name in enumerate(facts.axes[:-1]):
            if access.is_contiguous(name) and facts.hints[name] >= TILE:
                return number
    return -1


def _contiguous_accesses(facts: KernelFacts, axis: str, other: str) -> int:
    """Accesses in loops that are contiguous along an axis; those that do not move along the other one, and
    so are few, count little.
    """
    found = (access for access in facts.all_accesses if access.looped and access.is_contiguous(axis))
    return sum(4 if other in access.strides else 1 for access in found)
