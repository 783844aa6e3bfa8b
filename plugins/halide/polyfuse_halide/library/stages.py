"""A kernel as a Halide pipeline: inputs, the stages between, what is stored, and the schedule of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.combine import merge_scan
from polyfuse_halide.library.contraction import strict
from polyfuse_halide.library.math.arithmetic import Value, add, at_each, expr, maximum, minimum, mul
from polyfuse_halide.library.math.convert import STORED, convert, memory_type, widened
from polyfuse_halide.library.passes import Body, define, reads
from polyfuse_halide.library.reduce import Reduction, RowScan

__all__ = ["Program", "Schedule", "as_i64", "at", "checked_at", "index", "largest", "least", "shared"]


def index(value: Any) -> Value:
    """An index as an expression."""
    return expr(value)


def least(a: Any, b: Any) -> Any:
    """The smaller of two indices."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else hl.min(a, b)


def largest(a: Any, b: Any) -> Any:
    """The larger of two indices."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else hl.max(a, b)


def as_i64(value: Any) -> Value:
    """An index as an integer of 64 bits."""
    return hl.cast(hl.Int(64), expr(value))


def at(value: Value, extent: Any) -> Value:
    """A computed index, which the representation promises to be below an extent."""
    return hl.unsafe_promise_clamped(hl.cast(hl.Int(32), value), 0, extent - 1)


def checked_at(value: Value, extent: Any, words: str, mask: Value | None = None) -> Value:
    """A computed index that ends the kernel, with itself and these words, where it is not below an extent;
    where the mask is false, nothing is read or stored there.
    """
    wide = hl.cast(hl.Int(64), value)
    inside = (wide >= hl.cast(hl.Int(64), 0)) & (wide < hl.cast(hl.Int(64), expr(extent)))
    if mask is not None:
        inside = inside | (mask == hl.cast(mask.type(), 0))
    checked = hl.require(inside, wide, hl.Expr(words))
    return hl.unsafe_promise_clamped(hl.cast(hl.Int(32), checked), 0, extent - 1)


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate a section once for each index: later sections ask for the same values again and again."""
    known: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = {}

    def call(*indices: Any) -> Any:
        key = tuple(id(index) for index in indices)
        if key not in known:
            known[key] = (indices, function(*indices))
        return known[key][1]

    return call


@dataclass(frozen=True)
class Schedule:
    """How a kernel is computed.

    Attributes:
        kind: where lanes run: ``"points"`` along the last axis of a kernel without loops, ``"rows"`` along
            the last loop, ``"columns"`` along the last axis of a kernel with loops.
        lanes: points that one vector holds.
        unroll: vectors side by side.
        fuse: outermost axes that are shared by threads as one; 0: one thread does all.
        group: steps of these that one thread takes together.
        chunk: points of the lane axis that one thread takes together; 0: all of a row.
        shift: whether the last block of a row may begin earlier instead of being shorter.
        transpose: an axis that is walked in short chunks beside the lanes, because something is contiguous
            along it; -1: none.
    """

    kind: str
    lanes: int = 16
    unroll: int = 1
    fuse: int = 0
    group: int = 1
    chunk: int = 0
    shift: bool = False
    transpose: int = -1


@dataclass
class Input:
    """A buffer that is read."""

    dtype: str
    param: Any
    extent: Any = None

    def __call__(self, offset: Any, mask: Value | None = None, other: Value | None = None) -> Value:
        offset = expr(offset)
        if mask is None:
            return self.param[offset]
        # nothing is read outside: where the mask is false, some other element stands in
        if self.extent is None:
            return hl.select(mask, self.param[hl.select(mask, offset, hl.i32(0))], other)
        # a loop is divided where the limits do not matter, and there neighbours stay neighbours
        inside = hl.clamp(hl.likely_if_innermost(offset), 0, expr(self.extent) - 1)
        return hl.select(mask, self.param[inside], other)

    def within(self, extent: Any) -> Input:
        """The same for offsets that are sums of axes: limited to the buffer where a mask says to read
        nothing.
        """
        return Input(self.dtype, self.param, extent)


@dataclass
class Output:
    """Stores that one stage makes: at each index one value for each of its targets."""

    func: Any
    axes: list[Any]
    loops: list[Any]
    before: Any = None


@dataclass
class Scatter:
    """Stores at indices that are computed, or combined with what is there."""

    func: Any
    axes: list[Any]
    lane: Any
    lane_name: str
    disjoint: bool


@dataclass
class Program:
    """What a generated program builds."""

    inputs: list[Any] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    loops: dict[str, Any] = field(default_factory=dict)
    reductions: list[Reduction] = field(default_factory=list)
    rows: list[tuple[Any, list[Any]]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    scatters: list[Scatter] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)
    schedule: Schedule = Schedule("points")
    scans: list[RowScan] = field(default_factory=list)
    transposes: list[tuple[Any, list[Any]]] = field(default_factory=list)
    careful: bool = False

    def size(self, name: str) -> Value:
        """A shape symbol."""
        param = hl.Param(hl.Int(32), f"size_{name}")
        self.sizes.append(param)
        return hl.Expr(param)

    def input(self, name: str, dtype: str, extent: Any = None, backwards: bool = False) -> Input:
        """A buffer that is read, as its elements lie in memory; `extent`, where it matters: how many.

        Where lanes read `backwards`, Halide 21 cannot compile a tail of them if it knows where the buffer
        begins, which is at zero all the same.
        """
        param = hl.ImageParam(memory_type(dtype), 1, f"{name}_in")
        param.dim(0).set_stride(1)
        if not backwards:
            param.dim(0).set_min(0)
        if extent is not None:
            param.dim(0).set_extent(extent)
        self.inputs.append(param)
        return Input(dtype, param)

    def transposed(self, name: str, source: Input, offset: Any, *variables: Any) -> Value:
        """An element of a buffer whose neighbours lie along another axis than the lanes: a stage of its own,
        which can read small tiles along the one axis and give them along the other.
        """
        if not all(isinstance(p, hl.Var) for p in variables):
            return source(offset)
        func = hl.Func(f"{name}_transposed")
        define(func, variables, [source(offset)])
        self.transposes.append((func, list(variables)))
        return reads(func, variables, 1)[0]

    def axis(self, name: str, extent: Any) -> Any:
        """A parallel axis."""
        self.axes[name] = extent
        return hl.Var(name)

    def loop(self, name: str, extent: Any) -> Any:
        """A loop, outermost first."""
        self.loops[name] = extent
        return hl.Var(name)

    def _vars(self, names: Sequence[str]) -> list[Any]:
        return [hl.Var(name) for name in names]

    def reduce(self, name: str, kinds: Sequence[tuple[str, str, str]], body: Body) -> Reduction:
        """The reductions of one loop."""
        lanes = self.schedule.lanes if self.schedule.kind == "rows" else 1
        unroll = self.schedule.unroll if self.schedule.kind == "rows" else 1
        found = Reduction(
            name, self._vars(list(self.axes)), list(self.loops.values()), kinds, body, lanes, unroll
        )
        self.reductions.append(found)
        return found

    def row(self, name: str, body: Body) -> Callable[..., Value]:
        """A row buffer: a value stored for each parallel point and each step of its loops."""
        func = hl.Func(name)
        variables = self._vars([*self.axes, *self.loops])
        define(func, variables, list(body(*variables))[:1])
        self.rows.append((func, variables))
        return lambda *where: reads(func, where, 1)[0]

    def scan(self, name: str, kind: str, body: Body) -> Callable[..., list[Value]]:
        """An inclusive scan along the loop."""
        variables = self._vars([*self.axes, *self.loops])
        if self.schedule.kind == "rows":
            found = RowScan(
                name, kind, variables, self.loops[variables[-1].name()], max(self.schedule.lanes, 2)
            )
            self.scans.append(found)
            return found.define(body)
        func = hl.Func(name)
        values = list(body(*variables))
        define(func, variables, values)
        extent = list(self.loops.values())[-1]
        steps = extent - 1 if isinstance(extent, int) else hl.max(extent - 1, 0)
        step = hl.RDom([(1, steps)], f"{name}_r")[0]
        now, before = [*variables[:-1], step], [*variables[:-1], step - 1]
        define(func, now, merge_scan(kind, reads(func, before, len(values)), reads(func, now, len(values))))
        self.rows.append((func, variables))
        return lambda *where: reads(func, where, len(values))

    def store(
        self, name: str, looped: bool, strides: Sequence[Sequence[Any]], body: Body
    ) -> Callable[..., list[Value]]:
        """Store values at indices that are sums of axes times strides."""
        variables = self._vars([*self.axes, *(self.loops if looped else ())])
        values = list(body(*variables))
        func, before = self._stored(name, variables, looped, strides, values)
        count = len(self.axes)
        self.outputs.append(Output(func, variables[:count], variables[count:], before))
        return lambda *where: reads(func, where, len(values))

    def _stored(
        self,
        name: str,
        variables: list[Any],
        looped: bool,
        strides: Sequence[Sequence[Any]],
        values: list[Value],
    ) -> tuple[Any, Any]:
        """The stage that stores values, and the one before it, if all are computed before any is stored."""
        func, before = hl.Func(name), None
        if self.careful:
            before = hl.Func(f"{name}_before")
            define(before, variables, values)
            values = reads(before, variables, len(values))
        define(func, variables, values)
        extents = [*self.axes.values(), *(self.loops.values() if looped else ())]
        for number, (buffer, steps) in enumerate(zip(func.output_buffers(), strides)):
            for dim, (extent, step) in enumerate(zip(reversed(extents), reversed(steps))):
                if number == 0:
                    buffer.dim(dim).set_bounds(0, extent)
                buffer.dim(dim).set_stride(step)
        self.order.append(func)
        return func, before

    def scatter(
        self,
        name: str,
        dtype: str,
        looped: bool,
        mode: str,
        extent: Any,
        body: Callable[..., tuple[Any, Value, Value | None]],
        lane: str = "",
        disjoint: bool = False,
    ) -> None:
        """Store at computed indices, or combine with what is there.

        `body` gives the offset in the buffer, the value and the mask. Along the axis `lane`, if any, no two
        points share an element; `disjoint` says that no two points do at all, or that any of the stored
        values will do.
        """
        names = [*self.axes, *(self.loops if looped else ())]
        extents = [*self.axes.values(), *(self.loops.values() if looped else ())]
        func = hl.Func(name)
        func[hl.Var(f"{name}_at")] = hl.undef(memory_type(dtype))
        domain = hl.RDom([(0, e) for e in reversed(extents)] or [(0, 1)], f"{name}_r")
        loops = [domain[k] for k in range(len(extents))][::-1]
        offset, value, mask = body(*loops)
        if mask is not None:
            domain.where(strict(mask))
        if not extents:
            offset = (
                expr(offset) + domain[0]
            )  # of a domain that nothing refers to, the condition is not looked at
        offset = strict(hl.unsafe_promise_clamped(hl.cast(hl.Int(32), expr(offset)), 0, extent - 1))
        if loops:  # one value may go to one element, again and again
            value = at_each(value, loops[-1])
        func[offset] = strict(_combined(mode, dtype, expr(func[offset]), value))
        func.output_buffer().dim(0).set_bounds(0, extent)
        func.output_buffer().dim(0).set_stride(1)
        by_name = dict(zip(names, loops))
        self.scatters.append(
            Scatter(func, [by_name[n] for n in names], lane and by_name[lane], lane, disjoint)
        )
        self.order.append(func)

    def finish(self) -> tuple[Any, list[Any]]:
        """The pipeline and its arguments."""
        arguments = [hl.Argument(p) for p in (*self.inputs, *self.sizes)]
        return hl.Pipeline(self.order), arguments


def _combined(mode: str, dtype: str, old: Value, value: Value) -> Value:
    """What a store leaves in memory."""
    if mode == "set":
        return value
    if dtype in STORED:
        return convert(_combined(mode, "f32", widened(old, dtype), widened(value, dtype)), "f32", dtype)
    if old.type().is_bool():
        return old | value if mode in ("add", "max") else old & value
    return {"add": add, "mul": mul, "min": minimum, "max": maximum}[mode](old, value)
