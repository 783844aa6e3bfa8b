"""What makes a kernel a sum under a window: its taps, and what is done with the sum.

Each term is a number of the image times a weight of the same channel, under a mask of comparisons of the row
and the column. Which rows and columns of the result a tap counts for is known from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.kernel import Section
from polyfuse.ir.statements import Cast, Compute, Constant, IndexValue, Load, Reduce, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, coefficient, free_axes, substitute
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.tiling import Plan

_FEWEST_TAPS = 4
_FEWEST_COLUMNS = 4
_MOST_CHANNELS = 4096
"""Of each value that is stored for all channels, 16 KB lie on the stack."""

Interval = tuple[int, int]


@dataclass(frozen=True)
class Tap:
    """One term of the sum.

    Attributes:
        image, weight: what is multiplied.
        limits: axes other than that of columns along which the term counts for some results only: the first
            one, and the one behind the last.
        columns: of the result that the term counts for, likewise.
        zeros: whether the others count zero times the weight, which is NaN where that is infinite.
    """

    image: Load
    weight: Load
    limits: tuple[tuple[str, Interval], ...]
    columns: Interval
    zeros: bool


@dataclass(frozen=True)
class Window:
    """A kernel that sums up taps.

    Attributes:
        lane, column, row: axes of the channels and of the result's positions.
        taps: in the order of addition.
        step: elements of the image between neighbouring columns.
        total: name of the sum.
        before, after: statements of the sections before and after the points'.
        body: what is done with the sum at each point.
        mean: the sum over all points that is taken, if one is.
        planes: axes around that of the rows along which it is taken, too.
    """

    lane: str
    column: str
    row: str
    taps: tuple[Tap, ...]
    step: int
    total: str
    before: tuple[Statement, ...]
    body: tuple[Statement, ...]
    after: tuple[Statement, ...]
    mean: Reduce | None
    planes: tuple[str, ...]


def window_of(facts: Facts, plan: Plan) -> Window | None:
    """The taps of a kernel; None where it is none that sums them up along rows of lanes."""
    kernel, looped = facts.kernel, bool(facts.raxes)
    odd = plan.across or plan.tile or plan.along or plan.serial or plan.repeated or plan.limits
    if not plan.lane or plan.lanes == 1 or odd or kernel.row_buffers or kernel.numerics != "fast":
        return None
    outer = facts.raxes if looped else plan.axes[:-1]
    channels = facts.sizes[plan.lane]
    if len(outer) < 2 or not isinstance(channels, int):
        return None
    row, column = outer[-2:]
    extents = {name: facts.sizes[name] for name in (row, column)}
    height, width = extents[row], extents[column]
    if not isinstance(height, int) or not isinstance(width, int) or width < _FEWEST_COLUMNS:
        return None
    if not plan.lanes <= channels <= _MOST_CHANNELS:
        return None
    at = [k for k, section in enumerate(kernel.sections) if section.looped == looped]
    if len(at) != 1 or (not looped and len(kernel.sections) != 1):
        return None
    body = kernel.sections[at[0]].body
    known = {name: size for name in outer if isinstance(size := facts.sizes[name], int)}
    terms = _Terms(facts, known, (plan.lane, row, column))
    found = terms.longest(body)
    if found is None:
        return None
    total, taps, gone = found
    step = coefficient(taps[0].image.index, column)
    assert isinstance(step, int)
    rest = _still_needed(tuple(s for s in body if id(s) not in gone), kernel.sections[at[0] + 1 :])
    sums = [s for s in rest if isinstance(s, Reduce)]
    if len(sums) != looped or any(s.kind != "sum" or s.dtype is not DType.f32 for s in sums):
        return None
    before = tuple(s for section in kernel.sections[: at[0]] for s in section.body)
    after = tuple(s for section in kernel.sections[at[0] + 1 :] for s in section.body)
    mean, planes = (sums[0], outer[:-2]) if looped else (None, ())
    window = Window(plan.lane, column, row, taps, step, total, before, rest, after, mean, tuple(planes))
    return window if _is_plain(facts, plan, window) else None


def _still_needed(body: tuple[Statement, ...], later: Sequence[Section]) -> tuple[Statement, ...]:
    """The statements whose results are used, now that those that made the taps are gone."""
    needed = {name for section in later for s in section.body for name in s.args}
    used: list[Statement] = []
    for stmt in reversed(body):
        if isinstance(stmt, (Store, Reduce)) or needed & set(stmt.targets):
            used.append(stmt)
            needed |= set(stmt.args)
    return tuple(reversed(used))


def _is_plain(facts: Facts, plan: Plan, window: Window) -> bool:
    """Whether all other statements can be done for any channels, more than once, and in any order."""
    lane, whole = window.lane, facts.sizes[window.lane]
    assert isinstance(whole, int)
    overlaps = whole % plan.lanes != 0
    read = {t.image.buffer for t in window.taps} | {t.weight.buffer for t in window.taps}
    # what is read of each channel is read again after the first points were stored
    again = overlaps or window.mean is not None
    if any(a.input in read or again for a in facts.kernel.aliases) or read & facts.written:
        return False
    for stmt in (*window.before, *window.body, *window.after):
        match stmt:
            case Load():
                if stmt.indirect or coefficient(stmt.index, lane) not in (0, 1):
                    return False
                if overlaps and stmt.buffer in facts.written:
                    return False
            case Store():
                if stmt.mode != "set" or stmt.indirect or stmt.mask is not None:
                    return False
                if coefficient(stmt.index, lane) != 1:
                    return False
                if stmt in window.body and window.column not in free_axes(stmt.index):
                    return False
            case IndexValue():
                if lane in free_axes(stmt.index):
                    return False
            case Constant() | Compute() | Cast():
                continue
            case Reduce():
                if stmt is not window.mean:
                    return False
            case _:
                return False
    return True


@dataclass(frozen=True)
class _Terms:
    """Finds terms, and sums of them."""

    facts: Facts
    sizes: Mapping[str, int]
    axes: tuple[str, str, str]

    def longest(self, body: Iterable[Statement]) -> tuple[str, tuple[Tap, ...], frozenset[int]] | None:
        """The longest chain of additions: its result, its taps, and the statements (by identity) of it."""
        made = {name: s for s in self.facts.statements for name in s.targets}
        uses = Counter(name for s in self.facts.statements for name in s.args)
        chains: dict[str, tuple[Tap, ...]] = {}
        parts: dict[str, frozenset[int]] = {}
        for stmt in body:
            if not isinstance(stmt, Compute) or stmt.dtype is not DType.f32:
                continue
            if stmt.op == "mul" and (tap := self._tap(stmt, made, uses)) is not None:
                chains[stmt.target] = (tap,)
                read = {tap.image.target, tap.weight.target, *stmt.args}
                parts[stmt.target] = frozenset((id(stmt), *(id(made[name]) for name in read)))
            elif stmt.op == "add" and all(a in chains and uses[a] == 1 for a in stmt.args):
                left, right = stmt.args
                if len(chains[right]) == 1:
                    chains[stmt.target] = chains[left] + chains[right]
                    parts[stmt.target] = parts[left] | parts[right] | {id(stmt)}
        total = max(chains, key=lambda name: len(chains[name]), default="")
        if not total or len(chains[total]) < _FEWEST_TAPS:
            return None
        steps = {coefficient(t.image.index, self.axes[2]) for t in chains[total]}
        return (total, chains[total], parts[total]) if len(steps) == 1 else None

    def _tap(self, stmt: Compute, made: Mapping[str, Statement], uses: Mapping[str, int]) -> Tap | None:
        lane, row, column = self.axes
        loads = [load for name in stmt.args if (load := self._loaded(name, made, uses)) is not None]
        if len(loads) < len(stmt.args):
            return None
        image, weight = sorted(loads, key=lambda s: column not in free_axes(s.index))
        for load in (image, weight):
            if load.indirect or coefficient(load.index, lane) != 1:
                return None
            other = made.get(load.other) if load.other is not None else None
            if load.mask is not None and not (isinstance(other, Constant) and other.value == 0.0):
                return None
        if free_axes(weight.index) != (lane,) or weight.mask not in (None, image.mask):
            return None
        if {self.facts.memory[load.buffer] for load in (image, weight)} != {image.dtype}:
            return None
        steps = [coefficient(image.index, name) for name in (row, column)]
        if not all(isinstance(step, int) for step in steps) or not steps[1]:
            return None
        if self.facts.nonlinear_axes & set(free_axes(image.index)):
            return None
        inside = {name: (0, size) for name, size in self.sizes.items()}
        if image.mask is not None and not self._limit(image.mask, made, inside):
            return None
        zeros = image.mask is not None and weight.mask is None
        columns = inside.pop(column)
        limits = tuple((name, part) for name, part in inside.items() if part != (0, self.sizes[name]))
        return Tap(image, weight, limits, columns, zeros)

    def _loaded(self, name: str, made: Mapping[str, Statement], uses: Mapping[str, int]) -> Load | None:
        """The load of a value that is only read, and widened where it has 16 bits, and that is used once."""
        stmt = made.get(name)
        wide = isinstance(stmt, Cast) and not stmt.bitwise and stmt.dtype is DType.f32
        load = made.get(stmt.arg) if wide and isinstance(stmt, Cast) else stmt
        if not isinstance(load, Load) or uses[name] != 1 or uses[load.target] != 1:
            return None
        return load if load.dtype in ((DType.bf16, DType.f16) if wide else (DType.f32,)) else None

    def _limit(self, mask: str, made: Mapping[str, Statement], inside: dict[str, Interval]) -> bool:
        """Limit the positions to those for which a mask holds; whether it is of comparisons only."""
        stmt = made.get(mask)
        if not isinstance(stmt, Compute):
            return False
        if stmt.op == "bitwise_and":
            return all(self._limit(name, made, inside) for name in stmt.args)
        if stmt.op not in ("ge", "lt"):
            return False
        sides = [made.get(name) for name in stmt.args]
        if not all(isinstance(s, (IndexValue, Constant)) and s.dtype is DType.i64 for s in sides):
            return False
        left, right = (s.payload for s in sides if isinstance(s, (IndexValue, Constant)))
        return _limited(left - right, stmt.op, inside)


def _limited(index: IndexLike, op: str, inside: dict[str, Interval]) -> bool:
    """Limit the positions on one axis to those where an index is at least zero (`ge`), or less (`lt`)."""
    names = free_axes(index) if not isinstance(index, int) else ()
    if len(names) != 1 or names[0] not in inside:
        return False
    (name,) = names
    step, start = coefficient(index, name), substitute(index, {name: 0})
    if not isinstance(step, int) or not isinstance(start, int) or step <= 0:
        return False
    first, end = inside[name]
    at = -(start // step)
    inside[name] = (max(first, at), end) if op == "ge" else (first, min(end, at))
    return True
