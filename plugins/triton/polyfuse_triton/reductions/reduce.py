"""Reductions as Triton text: of a whole row at once, or chunk by chunk into accumulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from polyfuse.ir.ops import identity
from polyfuse.ir.statements import Reduce
from polyfuse.ir.types import DType
from polyfuse_triton.dtypes import literal, triton_type
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.reductions.cluster import Join

_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "prod": "combine_mul",
        "min": "combine_min",
        "max": "combine_max",
        "any": "combine_any",
        "all": "combine_all",
        "xor_sum": "combine_xor",
        "argmin": "combine_argmin",
        "argmax": "combine_argmax",
        "welford": "combine_welford",
    }
)
REDUCTIONS = frozenset((*_FUNCTIONS, "sum", "online_softmax"))
"""Kinds that have a text."""
_LOWEST = {DType.f32: -3.4028234663852886e38, DType.f64: -1.7976931348623157e308}
_LAST = {False: (1 << 63) - 1, True: (1 << 31) - 1}
_REPEATABLE = frozenset(("sum", "prod", "min", "max", "any", "all", "welford"))
"""Kinds of one operand whose tile may have fewer dimensions than the program's."""
_SCALE = float(1 << 20)
"""By what sums of distances are divided."""
_FLAGS = DType.i32
"""Type in which truth values are reduced."""


def reduced_types(kind: str, stmt: Reduce) -> tuple[DType, ...]:
    """Types of what a reduction gives."""
    return (stmt.dtype, DType.i64) if kind in ("argmin", "argmax") else (stmt.dtype,) * len(stmt.targets)


def _held(dtype: DType) -> DType:
    return _FLAGS if dtype is DType.bool else dtype


@dataclass(frozen=True)
class _Operand:
    """A value made ready: spread over the tile, points beyond the end replaced by what changes nothing."""

    text: str
    narrow: bool


def _operands(
    scope: MemoryScope, stmt: Reduce, values: Sequence[Value], full: frozenset[str]
) -> list[_Operand]:
    """The values spread over some dimensions of the tile."""
    kind = stmt.kind
    masks = scope.coordinates.mask(("r",))
    found = []
    for position, value in enumerate(values):
        narrow = value.narrow
        text = value.text if narrow else scope.typed(value)
        if value.dtype is DType.bool:
            text = f"({text}).to(tl.int32)"
        neutral = _neutral(kind, position, stmt.dtype, narrow)
        if masks and neutral:
            text = f"tl.where({masks[0]}, {text}, {neutral})"
            text = scope.spread(text, value.dims | {"r"}, full)
        else:
            text = scope.spread(text, value.dims, full)
        found.append(_Operand(text, narrow))
    return found


def _neutral(kind: str, position: int, dtype: DType, narrow: bool) -> str:
    """What a masked point counts as."""
    if position == 1:
        return literal(_LAST[narrow], DType.i32 if narrow else DType.i64)
    if kind == "welford":
        return ""
    if dtype is DType.bool:
        return literal(int(identity(kind, dtype)), _FLAGS)
    held = DType.i32 if narrow else dtype
    return literal(identity(kind, held), held)


# --- a row in one chunk -------------------------------------------------------------------------------------


def reduce_whole(scope: MemoryScope, stmt: Reduce, join: Join | None = None) -> tuple[Value, ...]:
    """Reduce a tile that holds all points, or the chunk of a row that is joined with others."""
    kind = stmt.kind
    values = [scope.value(name) for name in stmt.args]
    full = _tiles(scope) | {"r"}
    if len(values) == 1 and kind in _REPEATABLE and join is None:
        full = values[0].dims | {"r"}  # what is the same in all rows is reduced once
    operands = _operands(scope, stmt, values, full)
    if kind == "welford":
        return _moments(scope, stmt, operands[0].text, join, full - {"r"})
    if kind == "online_softmax":
        return _softmax(scope, stmt, operands[0].text, join)
    found = _finish(scope, stmt, [o.text for o in operands], operands[-1].narrow, full - {"r"})
    return found if join is None else _joined(scope, stmt, found, join)


def _joined(scope: MemoryScope, stmt: Reduce, found: Sequence[Value], join: Join) -> tuple[Value, ...]:
    """What this program found of a row, with what the others did."""
    neutral = [_neutral(stmt.kind, position, stmt.dtype, v.narrow) for position, v in enumerate(found)]
    texts = join.of([v.text for v in found], neutral)
    return _finish(scope, stmt, texts, found[-1].narrow, found[0].dims)


def _finish(
    scope: MemoryScope, stmt: Reduce, texts: Sequence[str], narrow: bool, dims: frozenset[str]
) -> tuple[Value, ...]:
    """The last step: a tile to one value for each row, along the dimensions `dims`."""
    kind, axis, keep = stmt.kind, _axis(scope), _keep(scope)
    if len(stmt.targets) > 1:
        names = [scope.name() for _ in stmt.targets]
        head = ", ".join(names)
        scope.out.line(f"{head} = tl.reduce(({', '.join(texts)}), {axis}, {_FUNCTIONS[kind]}{keep})")
        types = reduced_types(kind, stmt)
        held = [narrow and t is DType.i64 for t in types]
        found = [Value(n, t, dims, narrow=h) for n, t, h in zip(names, types, held, strict=True)]
        return tuple(_narrowed(scope, value) for value in found)
    value = Value("", stmt.dtype, dims, narrow=narrow)
    held_type = DType.i32 if narrow else _held(stmt.dtype)
    if kind == "sum":
        if narrow:
            # a sum of many numbers of 32 bits may need more
            text = f"tl.sum({texts[0]}.to(tl.int64), {axis}{keep})"
            return (scope.define(text, Value("", stmt.dtype, dims)),)
        return (_narrowed(scope, scope.define(_sum(texts[0], axis, keep, held_type), value)),)
    if kind == "prod" and narrow:
        text = f"tl.reduce({texts[0]}.to(tl.int64), {axis}, combine_mul{keep})"
        return (scope.define(text, Value("", stmt.dtype, dims)),)
    if kind in ("min", "max") and not held_type.is_float and held_type.itemsize >= 4:
        text = f"tl.{kind}({texts[0]}, {axis}{keep})"
    else:
        text = f"tl.reduce({texts[0]}, {axis}, {_FUNCTIONS[kind]}{keep})"
    return (_narrowed(scope, scope.define(text, value)),)


def _sum(text: str, axis: int, keep: str, dtype: DType) -> str:
    total = f"tl.sum({text}, {axis}{keep})"
    # short integers are added up in 32 bits
    return f"{total}.to({triton_type(dtype)})" if dtype.is_integer and dtype.itemsize < 4 else total


def _narrowed(scope: MemoryScope, value: Value) -> Value:
    """Truth values as such again."""
    if value.dtype is not DType.bool:
        return value
    return scope.define(f"{value.text} != 0", value)


def _tiles(scope: MemoryScope) -> frozenset[str]:
    """The dimensions of a tile that are not reduced."""
    return frozenset(d.name for d in scope.plan.tiles)


def _axis(scope: MemoryScope) -> int:
    return len(scope.plan.dims) - 1


def _keep(scope: MemoryScope) -> str:
    return ", keep_dims=True" if len(scope.plan.dims) > 1 else ""


def _count(scope: MemoryScope, dtype: DType) -> str:
    """How many points are reduced, as a number of a type."""
    plan, facts = scope.plan, scope.facts
    assert plan.reduced is not None
    sizes = [plan.reduced.extent, *(facts.sizes[q] for q in plan.serial)]
    total = 1
    texts = []
    for size in sizes:
        if isinstance(size, int):
            total *= size
        else:
            texts.append(f"({scope.coordinates.extent(size)})")
    if not texts:
        return literal(float(total), dtype)
    text = " * ".join([*texts, str(total)])
    return f"({text}).to({triton_type(dtype)})"


def _moments(
    scope: MemoryScope, stmt: Reduce, text: str, join: Join | None, dims: frozenset[str]
) -> tuple[Value, ...]:
    """Mean and squared deviations of a row in registers, in two passes over them."""
    axis, keep = _axis(scope), _keep(scope)
    plain = Value("", stmt.dtype, dims)
    masks = scope.coordinates.mask(("r",))
    row = scope.define(text, plain)

    def inside(what: str) -> str:
        return f"tl.where({masks[0]}, {what}, 0.0)" if masks else what

    count = scope.define(_count(scope, stmt.dtype), Value("", stmt.dtype))
    here = count if join is None else scope.define(join.points(stmt.dtype), Value("", stmt.dtype))
    points = scope.define(f"tl.maximum({here.text}, 1.0)", Value("", stmt.dtype))
    total = scope.define(f"tl.sum({inside(row.text)}, {axis}{keep})", plain)
    near = scope.define(f"divide({total.text}, {points.text})", plain)
    away = scope.define(inside(f"{row.text} - {near.text}"), plain)
    # the first mean is off by what its sum lost in rounding
    moved = scope.define(f"divide(tl.sum({away.text}, {axis}{keep}), {points.text})", plain)
    left = scope.define(inside(f"{away.text} - {moved.text}"), plain)
    mean = scope.define(_corrected(near, moved), plain)
    squares = scope.define(f"tl.sum({left.text} * {left.text}, {axis}{keep})", plain)
    if join is not None:
        mean, squares = _joined_moments(scope, stmt, mean, squares, join)
    return mean, squares, count


def _joined_moments(
    scope: MemoryScope, stmt: Reduce, mean: Value, squares: Value, join: Join
) -> tuple[Value, Value]:
    """Those of a row, of those of the part that this program has."""
    parts = [*join.of([mean.text, squares.text], ["0.0", "0.0"]), join.points_of_all(stmt.dtype)]
    mean, squares, _ = _finish(scope, stmt, parts, False, mean.dims)
    return mean, squares


def _softmax(scope: MemoryScope, stmt: Reduce, text: str, join: Join | None) -> tuple[Value, ...]:
    """Maximum and sum of exponentials of a row in registers."""
    axis, keep = _axis(scope), _keep(scope)
    plain = Value("", stmt.dtype, frozenset(d.name for d in scope.plan.tiles))
    masks = scope.coordinates.mask(("r",))
    row = scope.define(text, plain)
    largest = scope.define(f"tl.reduce({row.text}, {axis}, combine_max{keep})", plain)
    if join is not None:
        (highs,) = join.of([largest.text], [_neutral("max", 0, stmt.dtype, False)])
        largest = scope.define(f"tl.reduce({highs}, 0, combine_max)", plain)
    power = f"libdevice.exp({row.text} - {largest.text})"
    if masks:
        power = f"tl.where({masks[0]}, {power}, 0.0)"
    total = scope.define(f"tl.sum({power}, {axis}{keep})", plain)
    if join is not None:
        (totals,) = join.of([total.text], ["0.0"])
        total = scope.define(f"tl.sum({totals}, 0)", plain)
    return largest, total


# --- chunk by chunk -----------------------------------------------------------------------------------------


class Accumulator:
    """A reduction in a loop: tiles that collect partial results, joined after it; and then, if there is a
    `join`, with what other programs found of the row.
    """

    def __init__(self, scope: MemoryScope, stmt: Reduce, join: Join | None = None) -> None:
        self._scope = scope
        self._stmt = stmt
        self._kind = stmt.kind
        self._join = join
        count = {"welford": 5, "online_softmax": 2}.get(self._kind, len(stmt.args))
        self._names = [scope.name() for _ in range(count)]
        self._narrow = False

    def step(self) -> None:
        """Write the part inside the loop."""
        scope, kind = self._scope, self._kind
        values = [scope.value(name) for name in self._stmt.args]
        if kind in ("sum", "prod"):
            # what fits in 32 bits may not when many are added up
            values = [_wide(scope, value) for value in values]
        operands = _operands(scope, self._stmt, values, _tiles(scope) | {"r"})
        self._narrow = operands[-1].narrow
        texts = [o.text for o in operands]
        names = ", ".join(self._names)
        if kind == "welford":
            self._moments_step(texts[0])
        elif kind == "online_softmax":
            scope.out.line(f"{names} = softmax_step({names}, {texts[0]})")
        elif kind == "sum":
            scope.out.line(f"{names} = {names} + {texts[0]}")
        else:
            given = ", ".join([*self._names, *texts])
            scope.out.line(f"{names} = {_FUNCTIONS[kind]}({given})")

    def _moments_step(self, value: str) -> None:
        """A step whose mean is that of distances from the first value: one far from zero would be rounded
        more than a step moves it. What is beyond the end counts as a value at the mean, which moves nothing
        where no values follow it: all that is beyond the end comes last.
        """
        scope = self._scope
        total, squares, count, first, before = self._names
        masks = scope.coordinates.mask(("r",))
        scope.out.line(f"if {count} == 0.0:")
        with scope.out.indented():
            scope.out.line(f"{first} = finite_or_zero({value})")
        scope.out.line(f"{count} = {count} + 1.0")
        away, part = scope.name(), scope.name()
        text = f"{value} - {first}"
        if masks:
            text = f"tl.where({masks[0]}, {text}, {total} * {before})"
        scope.out.line(f"{away} = {text}")
        scope.out.line(f"{part} = {_SCALE} / {count}")
        scope.out.line(f"{total}, {squares} = moments_step({total}, {squares}, {before}, {part}, {away})")
        scope.out.line(f"{before} = {part}")

    def begin(self) -> list[str]:
        """The lines that stand before the loop; known after `step`."""
        shape = self._scope.shape(d.name for d in self._scope.plan.dims)
        shapes = [shape] * len(self._names)
        if self._kind == "welford":
            shapes[2] = shapes[4] = "()"
        return [
            f"{name} = tl.full({shape}, {value}, {triton_type(dtype)})"
            for name, shape, value, dtype in zip(
                self._names, shapes, self._starts(), self._types(), strict=True
            )
        ]

    def _types(self) -> list[DType]:
        dtype = _held(self._stmt.dtype)
        if self._kind in ("argmin", "argmax"):
            return [dtype, DType.i32 if self._narrow else DType.i64]
        if self._narrow:
            dtype = DType.i32
        return [dtype] * len(self._names)

    def _starts(self) -> list[str]:
        kind, dtype = self._kind, self._stmt.dtype
        if kind == "welford":
            return ["0.0"] * 5
        if kind == "online_softmax":
            return [repr(_LOWEST[dtype]), "0.0"]
        if self._narrow and kind not in ("argmin", "argmax"):
            dtype = DType.i32
        first = identity(kind, dtype)
        text = f'float("{first}")' if isinstance(first, float) else str(int(first))
        return [text, str(_LAST[self._narrow])][: len(self._names)]

    def finish(self) -> tuple[Value, ...]:
        """Write what stands after the loop, and give the results."""
        scope, stmt, kind = self._scope, self._stmt, self._kind
        if kind == "online_softmax":
            return self._softmax()
        if kind == "welford":
            return self._moments()
        found = _finish(scope, stmt, self._names, self._narrow, _tiles(scope))
        return found if self._join is None else _joined(scope, stmt, found, self._join)

    def _moments(self) -> tuple[Value, ...]:
        """Means of parts are compared as distances from a number near that of all: they lose no digits."""
        scope, stmt = self._scope, self._stmt
        axis, keep = _axis(scope), _keep(scope)
        plain, tile = Value("", stmt.dtype, _tiles(scope)), Value("", stmt.dtype, _tiles(scope) | {"r"})
        distances, squares, _, first, before = self._names
        mean = scope.define(f"{distances} * {before}", tile).text
        counts = scope.define(self._counts(), tile).text
        total = scope.define(_count(scope, stmt.dtype), Value("", stmt.dtype))
        here, join = total, self._join
        if join is not None:
            here = scope.define(join.points(stmt.dtype), Value("", stmt.dtype))
        share = f"divide({counts}, {here.text})"
        near = scope.define(f"tl.sum({share} * ({first} + {mean}), {axis}{keep})", plain)
        part = scope.define(f"tl.where({counts} > 0.0, {first} - {near.text} + {mean}, 0.0)", tile)
        moved = scope.define(f"divide(tl.sum({counts} * {part.text}, {axis}{keep}), {here.text})", plain)
        away = scope.define(f"{part.text} - {moved.text}", tile)
        whole = f"tl.sum({squares} + {counts} * {away.text} * {away.text}, {axis}{keep})"
        found = scope.define(_corrected(near, moved), plain), scope.define(whole, plain)
        return *(found if join is None else _joined_moments(scope, stmt, *found, join)), total

    def _softmax(self) -> tuple[Value, ...]:
        """Sums are brought to the largest maximum before they are added: that takes fewer exponentials than
        joining them in pairs.
        """
        scope, stmt = self._scope, self._stmt
        axis, keep = _axis(scope), _keep(scope)
        plain = Value("", stmt.dtype, frozenset(d.name for d in scope.plan.tiles))
        largest, total = self._names
        high = scope.define(f"tl.max({largest}, {axis}{keep})", plain)
        moved = f"{total} * libdevice.exp({largest} - {high.text})"
        whole = scope.define(f"tl.sum({moved}, {axis}{keep})", plain)
        lowest = literal(_LOWEST[stmt.dtype], stmt.dtype)
        if self._join is not None:
            highs, wholes = self._join.of([high.text, whole.text], [lowest, "0.0"])
            high = scope.define(f"tl.max({highs}, 0)", plain)
            brought = f"{wholes} * libdevice.exp({highs} - {high.text})"
            whole = scope.define(f"tl.sum({brought}, 0)", plain)
        names = scope.name(), scope.name()
        scope.out.line(f"{', '.join(names)} = finish_softmax({high.text}, {whole.text}, {lowest})")
        return tuple(Value(n, stmt.dtype, plain.dims) for n in names)

    def _counts(self) -> str:
        """How often each point of a tile was met: in all turns, but for those beyond the end of a row."""
        scope, count = self._scope, self._names[2]
        plan, reduced = scope.plan, scope.plan.reduced
        assert reduced is not None
        text, had = count, frozenset[str]()
        if not plan.walks:
            if masks := scope.coordinates.mask(("r",)):
                text, had = f"tl.where({masks[0]}, {count}, 0.0)", frozenset(("r",))
        elif not reduced.is_full:
            last = scope.coordinates.extent((reduced.extent - 1) % reduced.block + 1)
            if plan.walkers:
                # beyond the end is only the last program's
                last = f"{last} + {reduced.constant} * (rb < {plan.chunks - 1})"
            ends = " * ".join(scope.coordinates.extent(scope.facts.sizes[name]) for name in plan.serial)
            text, had = f"tl.where(rl < {last}, {count}, {count} - {ends or '1.0'})", frozenset(("r",))
        return scope.spread(text, had, frozenset(d.name for d in plan.dims))


def _corrected(mean: Value, offset: Value) -> str:
    """A mean that is off by as much; distances from infinity say nothing."""
    return f'tl.where(tl.abs({mean.text}) < float("inf"), {mean.text} + {offset.text}, {mean.text})'


def _wide(scope: MemoryScope, value: Value) -> Value:
    if not value.narrow:
        return value
    return scope.define(scope.typed(value), Value("", value.dtype, value.dims, span=value.span))
