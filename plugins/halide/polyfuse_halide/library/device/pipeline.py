"""Kernels for a device: pipelines of which each stage that stores is one launch.

A block of threads works on `Grid.points` points of the last axis and on one point of all others. Its
threads share the loops, `Grid.lanes` of them at each point. What they exchange lies in memory of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.device.reduce import DeviceReduction, DeviceScan, coordinates_of
from polyfuse_halide.library.math.arithmetic import Value, at_each, expr
from polyfuse_halide.library.math.convert import memory_type
from polyfuse_halide.library.passes import Body, define, flat_of, reads
from polyfuse_halide.library.reduce import Tail
from polyfuse_halide.library.stages import Program

__all__ = ["DeviceProgram", "Grid"]


@dataclass(frozen=True)
class Grid:
    """How a kernel is divided among blocks and threads.

    Attributes:
        lanes: threads that share the loops of a point; 1: each thread walks them alone.
        points: points of the last axis that a block takes.
        across: whether neighbouring threads take neighbouring points of the last axis, and not of the loops.
        each: elements that a thread takes of a kernel without loops.
        vector: whether these are neighbours that are moved as one.
        flat: whether a kernel without loops runs over all axes as one.
        transpose: an axis that is walked in tiles together with the last one, because something is contiguous
            along it; -1: none.
        keep: bytes of a row that a block keeps in its own memory at most.
    """

    lanes: int = 1
    points: int = 256
    across: bool = False
    each: int = 1
    vector: bool = False
    flat: bool = True
    transpose: int = -1
    keep: int = 40 << 10


@dataclass
class Stage:
    """What one launch computes before it stores."""

    shared: list[tuple[Any, list[Any], list[Any]]] = field(default_factory=list)
    reductions: list[DeviceReduction] = field(default_factory=list)
    scans: list[DeviceScan] = field(default_factory=list)
    tiles: list[tuple[Any, list[Any]]] = field(default_factory=list)
    made: dict[str, Callable[..., Any]] = field(default_factory=dict)


_TILE, _TILE_ROWS = 32, 8


@dataclass
class DeviceProgram(Program):
    """What a generated program for a device builds.

    `loose` says that values add up in memory: the device's instruction for that is used where additions may
    be reordered, so all else must keep its order.
    """

    grid: Grid = Grid()
    stage: Stage = field(default_factory=Stage)
    copies: int = 0
    loose: bool = False

    def _name(self, name: str) -> str:
        """Each launch has stages of its own."""
        return f"{name}_{self.copies}"

    def reduce(  # type: ignore[override]
        self, name: str, kinds: Sequence[tuple[str, str, str]], body: Body
    ) -> Callable[..., list[list[Value]]]:
        """The reductions of one loop."""

        def make() -> DeviceReduction:
            axes, sizes = self._vars(list(self.axes)), list(self.loops.values())
            found = DeviceReduction(self._name(name), axes, sizes, kinds, body, self.grid.lanes)
            self.stage.reductions.append(found)
            return found

        return self._lazy(name, make)

    def _lazy(self, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """What is made anew in each launch that asks for it."""

        def call(*indices: Any) -> Any:
            stage = self.stage
            if name not in stage.made:
                stage.made[name] = make()
            return stage.made[name](*indices)

        return call

    def row(self, name: str, body: Body) -> Callable[..., Value]:
        """A row buffer: a value for each parallel point and each step of its loops; long rows are computed
        again.
        """
        extents = list(self.loops.values())

        def make() -> Callable[..., Value]:
            axes, loops = self._vars(list(self.axes)), self._vars(list(self.loops))
            values = list(body(*axes, *loops))[:1]
            size = self.grid.points * values[0].type().bytes()
            for extent in extents:
                size = size * extent if isinstance(extent, int) else self.grid.keep + 1
            func = hl.Func(self._name(name))
            define(func, [*axes, *loops], values)
            if size <= self.grid.keep and self.grid.lanes > 1:
                self.stage.shared.append((func, axes, loops))
            return lambda *where: reads(func, where, 1)[0]

        return self._lazy(name, make)

    def scan(self, name: str, kind: str, body: Body) -> Callable[..., list[Value]]:
        """An inclusive scan along the loop."""

        def make() -> DeviceScan:
            axes = self._vars(list(self.axes))
            extent = list(self.loops.values())[-1]
            found = DeviceScan(self._name(name), kind, axes, extent, body, self.grid.lanes)
            self.stage.scans.append(found)
            return found

        return self._lazy(name, make)

    def once(self, name: str, body: Body) -> Callable[..., list[Value]]:
        """Values of a point, computed before any loop of it stores."""

        def make() -> Callable[..., list[Value]]:
            axes = self._vars(list(self.axes))
            values = list(body(*axes))
            func = hl.Func(self._name(name))
            define(func, axes, values)
            self.stage.shared.append((func, axes, []))
            return lambda *where: reads(func, where, len(values))

        return self._lazy(name, make)

    def tile(self, name: str, body: Body) -> Callable[..., Value]:
        """A value that is contiguous along the other axis: a tile of it is loaded so, and read transposed."""

        def make() -> Callable[..., Value]:
            axes = self._vars(list(self.axes))
            func = hl.Func(self._name(name))
            define(func, axes, list(body(*axes))[:1])
            self.stage.tiles.append((func, axes))
            return lambda *where: reads(func, where, 1)[0]

        return self._lazy(name, make)

    # --- what is stored -------------------------------------------------------------------------------------

    def store(
        self, name: str, looped: bool, strides: Sequence[Sequence[Any]], body: Body
    ) -> Callable[..., list[Value]]:
        """Store values at indices that are sums of axes times strides."""
        self._next()
        axes = self._vars(list(self.axes))
        loops = self._vars(list(self.loops)) if looped else []
        values = [self._strict(value) for value in body(*axes, *loops)]
        func, before = self._stored(name, [*axes, *loops], looped, strides, values)
        func.compute_root()
        if self.loops:
            inner = self._with_loops(func, axes, loops)
        else:
            inner = self._points(func, axes)
        if before is not None:
            before.compute_at(func, inner)
        return lambda *where: reads(func, where, len(values))

    def _strict(self, value: Value) -> Value:
        return hl.strict_float(value) if self.loose else value

    def _next(self) -> None:
        self.stage, self.copies = Stage(), self.copies + 1

    def _points(self, func: Any, axes: list[Any]) -> Any:
        """A launch without loops; the innermost loop of a thread."""
        grid = self.grid
        block, inside, thread, item = (hl.Var(n) for n in ("block", "inside", "thread", "item"))
        if grid.transpose >= 0:
            return self._tiles(func, axes)
        lane, outer = axes[-1], axes[:-1]
        if grid.flat:
            lane, outer = self._fused(func, axes), []
        func.split(lane, block, inside, grid.points * grid.each, Tail)
        if grid.each == 1:
            thread = item = inside
        elif grid.vector:
            func.split(inside, thread, item, grid.each, Tail).vectorize(item)
        else:
            func.split(inside, item, thread, grid.points, Tail).unroll(item)
        if outer:
            func.reorder(*([thread] if grid.each == 1 else [item, thread]), block, *reversed(outer))
            block = self._fused(func, [*outer, block])
        elif grid.each > 1:
            func.reorder(item, thread, block)
        func.gpu_blocks(block).gpu_threads(thread)
        return thread if grid.vector else item

    def _tiles(self, func: Any, axes: list[Any]) -> Any:
        across, lane = axes[self.grid.transpose], axes[-1]
        rest = [a for k, a in enumerate(axes[:-1]) if k != self.grid.transpose]
        rows, row, some, column, columns, block = (
            hl.Var(n) for n in ("rows", "row", "some", "column", "columns", "block")
        )
        func.split(across, rows, row, _TILE, Tail).split(row, some, row, _TILE_ROWS, Tail)
        func.split(lane, columns, column, _TILE, Tail)
        func.reorder(some, column, row, columns, rows, *reversed(rest)).unroll(some)
        block = self._fused(func, [*rest, rows, columns])
        func.gpu_blocks(block).gpu_threads(column, row)
        for tile, variables in self.stage.tiles:
            along, other = variables[self.grid.transpose], variables[-1]
            tile.compute_at(func, block).align_storage(other, _TILE + 1)
            tile.split(other, some, row, _TILE_ROWS, Tail)
            tile.reorder(
                some, along, row, *(a for k, a in enumerate(variables[:-1]) if k != self.grid.transpose)
            )
            tile.unroll(some).gpu_threads(along, row)
        return some

    def _fused(self, func: Any, variables: list[Any]) -> Any:
        """Some neighbouring loops, outermost first, as one."""
        whole = variables[0]
        for k, other in enumerate(variables[1:]):
            joined = hl.Var(f"joined{k}")
            func.fuse(other, whole, joined)
            whole = joined
        return whole

    def _with_loops(self, func: Any, axes: list[Any], loops: list[Any]) -> Any:
        """A launch whose points have loops; the innermost loop of a thread."""
        grid = self.grid
        outer, point, rounds = hl.Var("outer"), hl.Var("point"), hl.Var("rounds")
        func.split(axes[-1], outer, point, grid.points, Tail)
        order = [*axes[:-1], outer]
        if grid.lanes == 1:
            func.reorder(*reversed(loops), point, *reversed(order))
            func.gpu_blocks(self._fused(func, order)).gpu_threads(point)
            self._at(func, point, alone=True)
            return loops[-1] if loops else point
        lane = None
        if loops:
            func.reorder(*reversed(loops), point, *reversed(order))
            walk, lane = self._fused(func, loops), hl.Var("lane")
            func.split(walk, rounds, lane, grid.lanes, Tail)
            func.reorder(rounds, lane, point, *reversed(order))
            if not self.careful:
                self._unrolled(func, rounds)
        block = self._fused(func, order)
        func.gpu_blocks(block)
        inner = self._threads(func, lane, point)
        self._at(func, block, alone=False)
        return inner if lane is None else rounds

    def _threads(self, stage: Any, lane: Any | None, point: Any) -> Any:
        """Which loops of a stage are threads; the innermost one."""
        if lane is None:
            stage.gpu_threads(point)
            return point
        if self.grid.across:
            stage.reorder(point, lane).gpu_threads(point, lane)
            return point
        stage.gpu_threads(lane, point)
        return lane

    def _at(self, func: Any, level: Any, alone: bool) -> None:
        """Compute everything that a launch needs at a loop of it."""
        stage = self.stage
        for shared, axes, loops in stage.shared:
            shared.compute_at(func, level)
            if alone:
                continue
            lane = None
            if loops:
                lane, rounds = hl.Var("lane"), hl.Var("rounds")
                shared.reorder(*reversed(loops), *reversed(axes))
                shared.split(self._fused(shared, loops), rounds, lane, self.grid.lanes, Tail)
                shared.reorder(rounds, lane, axes[-1], *reversed(axes[:-1]))
                self._unrolled(shared, rounds)
            self._threads(shared, lane, axes[-1])
        parts: list[DeviceReduction | DeviceScan] = [*stage.reductions, *stage.scans]
        for part in parts:
            part.schedule(func, level, None if alone else self._threads)

    def _unrolled(self, stage: Any, rounds: Any) -> None:
        """Several loads on their way at once, where the number of rounds is known."""
        count: Any = 1
        for extent in self.loops.values():
            count = count * extent
        if not isinstance(count, int) or count % self.grid.lanes:
            return
        count //= self.grid.lanes
        for width in (4, 2):
            if count % width == 0 and count > width:
                stage.unroll(rounds, width)
                return

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
        """Store at computed indices, or combine with what is there."""
        self._next()
        extents, steps = list(self.axes.values()), list(self.loops.values()) if looped else []
        func = hl.Func(name)
        func[hl.Var(f"{name}_at")] = hl.undef(memory_type(dtype))
        points, many = flat_of([e - 1 for e in extents], extents) + 1, 1
        for size in steps:
            many = many * size
        domain = hl.RDom([(0, many), (0, points)], f"{name}_r")
        step, point = domain[0], domain[1]
        offset, value, mask = body(
            *coordinates_of(point, extents), *(coordinates_of(step, steps) if looped else ())
        )
        if mask is not None:
            domain.where(self._strict(mask))
        value = self._strict(at_each(value, point))
        offset = hl.unsafe_promise_clamped(hl.cast(hl.Int(32), expr(offset)), 0, extent - 1)
        old = expr(func[offset])
        # integers wrap by themselves on devices
        func[offset] = old + value if mode == "add" else value
        func.output_buffer().dim(0).set_bounds(0, extent)
        func.output_buffer().dim(0).set_stride(1)
        self.order.append(func)
        func.compute_root()
        stage = func.update(0)
        if mode == "set":
            stage.allow_race_conditions()
        else:
            stage.atomic(True)
        self._scatter_threads(func, stage, step, point)

    def _scatter_threads(self, func: Any, stage: Any, step: Any, point: Any) -> None:
        """Points are blocks where each has something to compute first, and else threads."""
        busy = self.stage.reductions or self.stage.scans or self.stage.shared
        if not busy:
            whole, block, thread = hl.RVar("whole"), hl.RVar("block"), hl.RVar("thread")
            stage.fuse(step, point, whole).split(whole, block, thread, 256, Tail)
            stage.gpu_blocks(block).gpu_threads(thread)
            return
        if self.grid.lanes == 1:
            block, thread = hl.RVar("block"), hl.RVar("thread")
            stage.split(point, block, thread, 1, Tail).gpu_blocks(block).gpu_threads(thread)
            self._at(func, thread, alone=True)
            return
        rounds, lane = hl.RVar("rounds"), hl.RVar("lane")
        stage.split(step, rounds, lane, self.grid.lanes, Tail).gpu_blocks(point).gpu_threads(lane)
        self._at(func, point, alone=False)
