"""Schedules chosen from what is known of a kernel: where its lanes run, and what threads share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.plugin import Config
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, coefficient
from polyfuse_halide.codegen.ops import COST, MATH

__all__ = [
    "CHOICES",
    "Plan",
    "access_kind",
    "axis_hints",
    "choose_plan",
    "pinned_choices",
    "turned_axis",
]

CHOICES = ("lanes", "unroll", "grain", "serial")
"""What a configuration may say of a schedule."""

_SERIAL = 24_000
"""Rough price of a kernel, in additions of one element, below which one thread does it all."""
_GRAIN = 16_384
"""Points that one thread takes together at least."""
TILE = 16
"""Points of an axis that runs along neighbours in memory where the lanes do not."""
_TASKS = 8
"""Pieces that there should be at least, so that threads end at about the same time."""


@dataclass(frozen=True)
class Plan:
    """A schedule; its fields are those of `polyfuse_halide.library.stages.Schedule`."""

    kind: str
    lanes: int = 16
    unroll: int = 1
    fuse: int = 0
    group: int = 1
    piece: int = 0
    shift: bool = False
    turn: int = -1

    def text(self) -> str:
        """The schedule as text of a generated program."""
        options = [f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__ if name != "kind"]
        return f'Schedule("{self.kind}", {", ".join(options)})'


def pinned_choices(text: str) -> Config | None:
    """A configuration from text such as ``lanes=8 unroll=2``; None where it is empty."""
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
    chosen = config or Config()
    hints = axis_hints(kernel)
    axes = tuple(axis_name(a) for a in kernel.axes)
    raxes = tuple(axis_name(a) for a in kernel.raxes)
    kind = access_kind(kernel, axes, raxes, hints)
    plan = Plan(kind, lanes=chosen.get("lanes", lanes), shift=not _in_place(kernel))
    if kind == "points":
        plan = replace(plan, turn=turned_axis(kernel, axes, hints))
    points = 1
    for name in axes:
        points *= max(hints[name], 1)
    steps = 1
    for name in raxes:
        steps *= max(hints[name], 1)
    cost = max(1, sum(_price(s) for part in kernel.sections for s in part.body))
    unroll = 1 if kind == "points" else 4
    plan = replace(plan, unroll=chosen.get("unroll", unroll))
    static = all(isinstance(axis_size(a), int) for a in (*kernel.axes, *kernel.raxes))
    if (static and points * steps * cost < _SERIAL) or chosen.get("serial"):
        return plan
    if kind == "points" and not axes:
        return plan
    return _shared(plan, kernel, axes, [hints[a] for a in axes], steps, chosen)


def _shared(
    plan: Plan, kernel: Kernel, axes: tuple[str, ...], sizes: list[int], steps: int, chosen: Config
) -> Plan:
    """The plan with threads: which axes they share, and how much each takes."""
    grain = chosen.get("grain", _GRAIN)
    if not axes:
        # all that is left is what is stored in loops
        return replace(plan, fuse=1, piece=grain)
    if plan.kind == "rows":
        outer, rest = list(sizes), steps
    elif plan.kind == "columns":
        wide = plan.lanes * plan.unroll
        outer, rest = [*sizes[:-1], -(-sizes[-1] // wide)], wide * steps
    elif plan.turn >= 0:
        outer, rest = list(sizes[:-1]), sizes[-1] * TILE
        outer[plan.turn] = -(-outer[plan.turn] // TILE)
    else:
        outer, rest = list(sizes[:-1]), sizes[-1]
    piece = 0
    if (
        plan.kind == "points"
        and plan.turn < 0
        and (not outer or (rest >= 2 * grain and _product(outer) < _TASKS))
    ):
        piece = grain
        outer.append(-(-rest // grain))
        rest = grain
    fuse, tasks = 1, max(outer[0], 1)
    while fuse < len(outer) and tasks < _TASKS:
        tasks *= max(outer[fuse], 1)
        fuse += 1
    each = rest * _product(outer[fuse:])
    return replace(plan, fuse=fuse, group=max(1, min(grain // max(each, 1), max(1, tasks // 4))), piece=piece)


def _product(values: list[int]) -> int:
    found = 1
    for value in values:
        found *= max(value, 1)
    return found


def _price(stmt: Statement) -> int:
    return COST.get(stmt.op, 24 if stmt.op in MATH else 1)


def axis_hints(kernel: Kernel) -> dict[str, int]:
    """The extent of each axis, or an example of it."""
    found: dict[str, int] = {}
    for place, variable in enumerate((*kernel.axes, *kernel.raxes)):
        size = axis_size(variable)
        given = kernel.size_hints[place] if place < len(kernel.size_hints) else 512
        found[axis_name(variable)] = size if isinstance(size, int) else given
    return found


def _in_place(kernel: Kernel) -> bool:
    """Whether a buffer is read and written, so that no place may be written twice."""
    local = {b.name for b in kernel.row_buffers}
    stmts = [s for part in kernel.sections for s in part.body]
    written = {s.buffer for s in stmts if isinstance(s, Store)} - local
    read = (s.buffer for s in stmts if isinstance(s, Load))
    return bool(kernel.aliases) or any(buffer in written for buffer in read)


def access_kind(kernel: Kernel, axes: tuple[str, ...], raxes: tuple[str, ...], hints: dict[str, int]) -> str:
    """Where neighbours in memory lie: along the last loop (`rows`), or along the last axis (`columns`)."""
    if not raxes:
        return "points"
    if not axes:
        return "rows"
    along = _unit_accesses(kernel, raxes[-1], axes[-1])
    apart = _unit_accesses(kernel, axes[-1], raxes[-1])
    if any(s.op == "scan" for part in kernel.sections for s in part.body):
        return "columns" if apart > along else "rows"
    if apart > along or (hints[raxes[-1]] < 12 and hints[axes[-1]] >= 16 and apart + along > 0):
        return "columns"
    return "rows"


def turned_axis(kernel: Kernel, axes: tuple[str, ...], hints: dict[str, int]) -> int:
    """The axis along which something is contiguous that is not so along the last one; -1 if there is none."""
    if len(axes) < 2 or hints[axes[-1]] < TILE:
        return -1
    for section in kernel.sections:
        for stmt in section.body:
            if not isinstance(stmt, (Load, Store)) or _step(stmt.index, axes[-1]) in (0, 1, None):
                continue
            for place, name in enumerate(axes[:-1]):
                if _step(stmt.index, name) == 1 and hints[name] >= TILE:
                    return place
    return -1


def _unit_accesses(kernel: Kernel, name: str, other: str) -> int:
    """Accesses in loops that are contiguous along an axis; those that do not move along the other one, and
    so are few, count little.
    """
    found = 0
    for section in kernel.sections:
        if not section.looped:
            continue
        for stmt in section.body:
            if isinstance(stmt, (Load, Store)) and _step(stmt.index, name) == 1:
                found += 1 if _step(stmt.index, other) == 0 else 4
    return found


def _step(index: IndexLike | Index, name: str) -> IndexLike | None:
    return coefficient(index, name)
