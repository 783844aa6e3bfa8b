"""Schedules: which loops are vectors, which are shared by threads, and where each stage is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import halide as hl

from polyfuse_halide.library.reduce import Reduction, Tail
from polyfuse_halide.library.stages import Output, Program

TILE = 16
"""Points of a tile along either axis."""
_AT_ONCE = 8
"""Elements that a tile reads at once: 8 vectors of 8 are exchanged with the fewest instructions."""


def transpose_in_registers(
    tile: Any, func: Any, level: Any, read: Any, stored: Any, sizes: tuple[int, int]
) -> None:
    """A tile is computed in vectors along the axis `read` and stored in vectors along the axis `stored`: as
    all of them are there at once, Halide transposes them in registers. `sizes` are those of the tile.
    """
    tile.compute_at(func, level).bound_extent(read, sizes[0]).bound_extent(stored, sizes[1])
    tile.reorder_storage(stored, read)
    tile.reorder(stored, read).vectorize(read, _AT_ONCE).unroll(read)
    tile.reorder(stored, read).unroll(stored)


__all__ = ["ScheduledProgram"]


class ScheduledProgram(Program):
    """A program for the CPU with a schedule of this module's."""

    def finish(self) -> tuple[Any, list[Any]]:
        """Schedule everything; the pipeline and its arguments."""
        _apply(self)
        return super().finish()


def _apply(program: Program) -> None:
    """Schedule every stage of a program."""
    for scatter in program.scatters:
        _scatter(program, scatter)
    reductions = list(program.reductions)
    if not program.outputs or program.scatters:
        for output in program.outputs:
            _points(program, output, output.axes, output.loops)
        for reduction in reductions:
            _root(program, reduction)
        _root_rows(program)
        return
    if program.schedule.kind == "points":
        for output in program.outputs:
            _points(program, output, output.axes, [])
        return
    if program.schedule.kind == "columns":
        _columns(program)
    elif program.axes:
        _rows(program)
    else:
        for output in program.outputs:
            _points(program, output, [], output.loops)
        for reduction in reductions:
            _root(program, reduction)
        _root_rows(program)


def _root_rows(program: Program) -> None:
    for func, variables in program.rows:
        func.compute_root()
        _row_lanes(program, func, variables)
    for scan in program.scans:
        scan.schedule()


def _row_lanes(program: Program, func: Any, variables: list[Any]) -> None:
    """Lanes along the loop of a row that is computed in one go."""
    loops = variables[len(program.axes) :]
    if program.schedule.kind != "rows" or func.num_update_definitions():
        return
    lanes = _lanes_within(program.loops[loops[-1].name()], program.schedule.lanes)
    if lanes >= 4:
        func.vectorize(loops[-1], lanes, Tail)


def _lanes_within(extent: Any, lanes: int) -> int:
    """Lanes of which a loop fills all at least once."""
    while isinstance(extent, int) and lanes > extent:
        lanes //= 2
    return lanes


def _threads(program: Program, func: Any, axes: list[Any]) -> Any | None:
    """Share the outermost axes among threads; the innermost loop of what a thread takes at once."""
    plan = program.schedule
    if not plan.fuse or not axes:
        return None
    shared = axes[0]
    for k, other in enumerate(axes[1 : plan.fuse]):
        joined = hl.Var(f"joined{k}")
        func.fuse(other, shared, joined)
        shared = joined
    if plan.group > 1:
        outer, inner = hl.Var("task"), hl.Var("step")
        func.split(shared, outer, inner, plan.group, Tail).parallel(outer)
        return inner
    func.parallel(shared)
    return shared


def _points(program: Program, output: Output, axes: list[Any], loops: list[Any]) -> None:
    """A stage without loops of its own: lanes along the last axis, threads on the outer ones."""
    plan, func = program.schedule, output.func
    func.compute_root()
    order = [*axes, *loops]
    if not order:
        return
    extents = {**program.axes, **program.loops}
    lane = order[-1]
    extent = extents[lane.name()]
    lanes = _lanes_within(extent, plan.lanes)
    outer = order[:-1]
    if plan.transpose >= 0 and not loops and lanes >= 4:
        # neighbours along the other axis are read again at once, while their lines are near
        rows, row, block, column = (hl.Var(n) for n in ("rows", "row", "block", "column"))
        across = outer[plan.transpose]
        tail = _whole_tiles(program, output, across, lane, lanes)
        func.split(across, rows, row, TILE, tail or Tail).split(lane, block, column, lanes, tail or Tail)
        outer[plan.transpose] = rows
        level = block
        if tail is not None and program.axes[across.name()] % (2 * TILE) == 0:
            # two tiles side by side take whole pairs of lines, which are fetched together
            level = hl.Var("tile")
            func.split(rows, rows, level, 2, Tail)
            func.reorder(column, row, level, block, *reversed(outer)).vectorize(column)
        else:
            func.reorder(column, row, block, *reversed(outer)).vectorize(column)
        if tail is not None:
            func.unroll(row)
            for tile, _ in program.transposes:
                transpose_in_registers(tile, func, level, across, lane, (TILE, lanes))
        _before(output, func, row, order[-1], lanes)
        _threads(program, func, outer)
        return
    if plan.chunk and plan.fuse:
        chunk, inside = hl.Var("chunk"), hl.Var("inside")
        func.split(lane, chunk, inside, plan.chunk, Tail)
        outer, lane = [*outer, chunk], inside
    if lanes >= 4:
        func.vectorize(lane, lanes, Tail)
        if plan.unroll > 1 and (not isinstance(extent, int) or extent >= lanes * plan.unroll):
            func.unroll(lane, plan.unroll, Tail)
    _before(output, func, lane, order[-1], lanes)
    _threads(program, func, outer)


def _whole_tiles(program: Program, output: Output, across: Any, lane: Any, lanes: int) -> Any | None:
    """How the last tiles of a row are taken, if all can be whole; None if not, or if none is transposed."""
    sizes = program.axes[across.name()], program.axes[lane.name()]
    if not program.transposes or output.before is not None or not all(isinstance(s, int) for s in sizes):
        return None
    if sizes[0] % TILE == 0 and sizes[1] % lanes == 0:
        return Tail
    if program.schedule.shift and sizes[0] >= TILE and sizes[1] >= lanes:
        return hl.TailStrategy.ShiftInwards
    return None


def _before(output: Output, func: Any, level: Any, along: Any, lanes: int) -> None:
    """Where values are computed before anything is stored, they are so within a loop of the stage."""
    if output.before is not None:
        output.before.compute_at(func, level)
        if lanes >= 4:
            output.before.vectorize(along, lanes, Tail)


def _root(program: Program, reduction: Reduction) -> None:
    """A reduction computed for all points before anything reads it."""
    for single in reduction.passes:
        single.func.compute_root()
        if program.schedule.fuse and single.axes:
            single.func.parallel(single.axes[0])
            if single.lanes == 1:
                single.func.update(0).parallel(single.axes[0])
        single.at_each_point()


def _alone(program: Program, output: Output) -> bool:
    """Whether no other stage stores in loops: what this one reads, only it overwrites, at the same index."""
    return bool(output.loops) and sum(bool(o.loops) for o in program.outputs) == 1


def _rows(program: Program) -> None:
    """One row after the other: its reductions, then what is stored of it."""
    head = next((o for o in program.outputs if o.loops), program.outputs[0])
    plan = program.schedule
    level: Any = None
    for output in [head, *(o for o in program.outputs if o is not head)]:
        func = output.func
        func.compute_root()
        if output.loops:
            lanes = _lanes_within(program.loops[output.loops[-1].name()], plan.lanes)
            if lanes >= 4:
                func.vectorize(output.loops[-1], lanes, Tail)
            if _alone(program, output):
                _before(output, func, output.loops[-1], output.loops[-1], lanes)
        inner = _threads(program, func, output.axes)
        last = output.axes[-1] if inner is None or plan.fuse < len(output.axes) else inner
        if output is head:
            level = last
        else:
            func.compute_with(head.func, last)
    _at_level(program, head.func, level)
    for reduction in program.reductions:
        for single in reduction.passes:
            single.at_each_point()


def _at_level(program: Program, func: Any, level: Any) -> None:
    for reduction in program.reductions:
        for single in reduction.passes:
            single.func.compute_at(func, level)
    for row, variables in program.rows:
        row.compute_at(func, level)
        _row_lanes(program, row, variables)
    for scan in program.scans:
        scan.schedule(func, level)
    for output in program.outputs:
        if output.before is not None and not _alone(program, output):
            output.before.compute_at(func, level)
            if output.loops:
                _row_lanes(program, output.before, [*output.axes, *output.loops])


@dataclass(frozen=True)
class _Block:
    """Neighbouring columns that are computed together.

    Attributes:
        lanes: columns of a vector.
        columns: how many, a multiple of the lanes.
        tail: what is done about columns that are no whole block.
        whole: whether there are none, and all reductions are needed for just the block.
    """

    lanes: int
    columns: int
    tail: Any
    whole: bool


def _columns(program: Program) -> None:
    """A block of neighbouring columns at a time, each lane with a column of its own."""
    if len(program.outputs) > 1:
        # of outputs computed together, Halide loses the bounds of a block whose loop is fused with another
        # or begins earlier: it computes reductions for whole rows, where each block has room for its own
        program.schedule = replace(program.schedule, fuse=min(program.schedule.fuse, 1), shift=False)
    head = next((o for o in program.outputs if o.loops), program.outputs[0])
    block = _block_of(program, head)
    _at_level(program, head.func, _loops_of_columns(program, head, block))
    if block.lanes < 4:
        return
    column = head.axes[-1]
    for reduction in program.reductions:
        for single in reduction.passes:
            _reduction_of_columns(single.func, column, single.loops, block)
    for output in program.outputs:
        if output.before is not None and not _alone(program, output):
            if output.loops:
                output.before.reorder_storage(column, *reversed(output.loops))
            output.before.vectorize(column, block.lanes, Tail)
    for row, variables in program.rows:
        inward = [variable for variable in reversed(variables) if variable.name() != column.name()]
        row.reorder_storage(column, *inward).reorder(column, *inward)
        row.vectorize(column, block.lanes, Tail)
        for k in range(row.num_update_definitions()):
            row.update(k).vectorize(column, block.lanes, Tail)


def _block_of(program: Program, head: Any) -> _Block:
    """What the schedule says of columns, as far as there are so many."""
    plan, extent = program.schedule, program.axes[head.axes[-1].name()]
    lanes = _lanes_within(extent, plan.lanes)
    wide = lanes * max(1, plan.unroll)
    while isinstance(extent, int) and wide > max(extent, lanes):
        wide //= 2
    tail = hl.TailStrategy.ShiftInwards if plan.shift and isinstance(extent, int) and extent >= wide else Tail
    whole = isinstance(extent, int) and (extent % wide == 0 or tail is not Tail)
    # a block of the head needs more of the reductions where another output has no loop in common with it
    whole = whole and all(bool(o.loops) == bool(head.loops) for o in program.outputs)
    return _Block(lanes, wide, tail, whole)


def _loops_of_columns(program: Program, head: Any, block: _Block) -> Any:
    """Divide the loops of all outputs into blocks; the loop in which the head's reductions are computed."""
    at = level = hl.Var("block")
    for output in [head, *(o for o in program.outputs if o is not head)]:
        func, lane = output.func, output.axes[-1]
        func.compute_root()
        column = hl.Var("column")
        func.split(lane, at, column, block.columns, block.tail)
        if output.loops:
            func.reorder(column, *reversed(output.loops), at)
        if block.lanes >= 4:
            func.vectorize(column, block.lanes, Tail)
        if _alone(program, output):
            _before(output, func, column, lane, block.lanes)
        inner = _threads(program, func, [*output.axes[:-1], at])
        if output is not head:
            func.compute_with(head.func, level)
        elif inner is not None and program.schedule.fuse >= len(output.axes):
            level = inner
    return level


def _reduction_of_columns(func: Any, column: Any, loops: Any, block: _Block) -> None:
    """Each lane adds up a column; sums of a block stay in registers where its size is known."""
    func.vectorize(column, block.lanes, Tail)
    update = func.update(0).reorder(column, *reversed(loops)).vectorize(column, block.lanes, Tail)
    if block.whole and block.columns > block.lanes:
        func.bound_extent(column, block.columns).unroll(column)
        update.unroll(column)


def _reordered(stage: Any, order: list[Any]) -> bool:
    """Whether loops may be interchanged, and then they are: Halide knows of no order in which values may be
    stored, nor of most ways to combine them.
    """
    try:
        stage.reorder(*reversed(order))
    except hl.HalideError:
        return len(order) == 1
    return True


def _scatter(program: Program, scatter: Any) -> None:
    """Lanes along an axis whose points have elements of their own; threads where all have."""
    func, plan = scatter.func, program.schedule
    func.compute_root()
    stage = func.update(0)
    if not scatter.axes:
        stage.unscheduled()
        return
    order = list(scatter.axes)
    if not (scatter.lane or scatter.disjoint):
        stage.unscheduled()
        return
    stage.allow_race_conditions()
    if scatter.lane:
        order = [a for a in order if a.name() != scatter.lane.name()] + [scatter.lane]
        if not _reordered(stage, order):
            # points that share an element lie at the same point of the lane's axis, so in one lane: in order
            stage.vectorize(scatter.lane, plan.lanes, Tail)
            return
    extent = {**program.axes, **program.loops}.get(scatter.lane_name)
    wide = 4 * plan.lanes
    if plan.fuse and scatter.lane and not scatter.disjoint and isinstance(extent, int) and extent >= 2 * wide:
        # each thread has columns of its own, and walks all rows
        chunk, inside = hl.RVar("chunk"), hl.RVar("inside")
        stage.split(order[-1], chunk, inside, wide, Tail)
        apart = _reordered(stage, [chunk, *order[:-1], inside])  # strict sums may not be
        stage.vectorize(inside, plan.lanes, Tail)
        if apart:
            stage.parallel(chunk)
        return
    stage.vectorize(order[-1], plan.lanes, Tail)
    if plan.fuse and scatter.disjoint and len(order) > 1:
        stage.parallel(order[0])
