"""Tiles of kernels with loops.

Where memory is contiguous along what is reduced, a program has one row or a few short ones; where it is
contiguous along a parallel axis, a tile covers a chunk of that axis too, so that loads read whole lines. Rows
that fit in registers are loaded once (`persistent`); longer ones are walked in chunks, again in each section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Reduce
from polyfuse.kit import Access
from polyfuse.symbolic import IndexLike, product
from polyfuse_triton.reductions.passes import with_fewer_passes
from polyfuse_triton.reductions.row_buffers import Rows
from polyfuse_triton.reductions.row_groups import Groups, row_groups
from polyfuse_triton.reductions.row_products import matrices_of_row, normalises_row
from polyfuse_triton.reductions.row_splits import can_join, can_look_back
from polyfuse_triton.target import Target
from polyfuse_triton.target_info import target_info_of
from polyfuse_triton.tiling.plan import Dim, Plan, most_of, power_of_two
from polyfuse_triton.tiling.pointwise import REGISTERS, contiguous_weights, grown, per_thread
from polyfuse_triton.tiling.register_pressure import Facts

_WARP = 32
_THREADS, _LARGEST, _RESIDENT = 512, 1024, 2048
"""Threads that share a long row, the most of a program, and the most of a multiprocessor."""
_FEW, _MANY = 8, 16
"""Points of whole rows that a thread has."""
_PRODUCT_POINTS, _PRODUCT_WARPS = 32, 4
"""Points of matrices that a thread multiplies by a row that its program normalises, and its fewest warps."""
_PROGRAMS = 4
"""Programs under way at a time on a multiprocessor."""
_ROW = 16384
"""Longest row that is held in registers where several sections need it, if its values are few."""
_ROW_ONCE = 4096
"""The same where one section needs it: a loop loses nothing."""
_ROW_FORCED = 65536
"""The same where nothing else is possible."""
_TILE = 2048
"""Points of a tile of several short rows."""
_WARP_BYTES, _THREAD_BYTES = 2048, 32
"""Bytes of one array in rows of one warp that come from the last cache, and of a thread in longer rows."""
_CACHED_PROGRAMS, _CACHED_WARPS = 4096, 7
"""Programs of such rows at most, as each takes its time to start, and warps that a multiprocessor needs."""
_CACHED_REGISTERS = 240
"""Registers of a thread by an estimate that is three times what layer norms take."""
_CHUNK, _SHORTEST_CHUNK = 4096, 1024
"""Points of a row's chunk that is a program of its own."""
_CLUSTER_CHUNKS = (8192, 16384)
"""Points of a chunk that a program of a cluster keeps in registers."""
_CLUSTER, _LARGEST_CLUSTER = 8, 16
"""Programs of a cluster that every device has room for, and the most of any."""
_CACHED = 32
"""Points of such a chunk for each thread."""
_WALKERS, _LONGEST_WALK = 512, 1 << 30
"""Threads of a program of a cluster that walks its part of a row, and points of a row whose numbers have room
in 32 bits.
"""
_WALKERS_TOGETHER = 2
"""Such programs that a multiprocessor has room for."""
_STAYS, _STAYS_IN_PART = 0.6, 0.8
"""Shares of the last cache: rows under way that stay in it, and those of which enough does to gain."""
_WIDE = 16
"""Bytes of the widest access, which begin at multiples of as many."""
_MOVED = 6
"""Bytes that are read and stored for a point, below which few threads take longer to compute than to read."""
_VALUES = 4
"""Values of such a point that fit in registers."""
_CACHED_COLUMNS = 64
"""Longest column that a tile holds along a contiguous parallel axis."""


def reduction_plan(
    kernel: Kernel, facts: Facts, target: Target, rows: Rows, persistent: bool | None = None
) -> Plan:
    """The plan of a kernel with looped sections; `persistent` decides where it is not None."""
    shape = _shape(kernel, facts, target, rows)
    lead = shape.lead()
    if lead in facts.axes:
        return shape.columns(lead, persistent)
    return shape.rows_of(persistent)


def joined_plan(kernel: Kernel, facts: Facts, target: Target, rows: Rows, chunk: int = 0) -> Plan:
    """The plan of a kernel with rows that several programs hold together, in chunks of so many points.

    Raises `UnsupportedError` where that is impossible.
    """
    shape = _shape(kernel, facts, target, rows)
    plan = None
    if shape.lead() in facts.raxes:
        chunks = (power_of_two(chunk),) if chunk else _CLUSTER_CHUNKS
        plan = shape.joined(chunks) or shape.joined(chunks, _LARGEST_CLUSTER)
    if plan is None:
        raise UnsupportedError(
            f"kernel {kernel.name} has no rows that a cluster of programs could hold",
            "let one program walk them",
        )
    return plan


def walkers_plan(kernel: Kernel, facts: Facts, target: Target, rows: Rows, programs: int = 0) -> Plan:
    """The plan of a kernel with rows that so many programs walk together, each its own part.

    Raises `UnsupportedError` where that is impossible.
    """
    shape = _shape(kernel, facts, target, rows)
    plan = shape.walkers(programs or _CLUSTER) if shape.lead() in facts.raxes else None
    if plan is None:
        raise UnsupportedError(
            f"kernel {kernel.name} has no rows that a cluster of programs could walk",
            "let one program walk them",
        )
    return plan


def _shape(kernel: Kernel, facts: Facts, target: Target, rows: Rows) -> _Shape:
    looped = [a for a in facts.accesses if a.looped]
    scans = any(stmt.op == "scan" for section in kernel.sections for stmt in section.body)
    kinds = {s.kind for section in kernel.sections for s in section.body if isinstance(s, Reduce)}
    positions = not kinds.isdisjoint({"argmin", "argmax"})
    looks_back = scans and can_look_back(kernel, facts)
    groups = row_groups(kernel, facts)
    joins = target.clusters and groups is None and can_join(kernel, facts)
    rounds = sum(any(s.op == "reduce" for s in section.body) for section in kernel.sections)
    rounds += "online_softmax" in kinds
    exchanges = 0
    if joins:
        walked = with_fewer_passes(kernel).sections
        exchanges = sum(any(s.op == "reduce" for s in section.body) for section in walked)
    matrices = matrices_of_row(kernel, facts) if normalises_row(kernel, facts) else 0
    return _Shape(
        facts, target, looped, rows, scans, groups, positions, looks_back, joins, rounds, exchanges, matrices
    )


@dataclass(frozen=True)
class _Shape:
    facts: Facts
    target: Target
    looped: Sequence[Access]
    rows: Rows
    scans: bool
    groups: Groups | None
    positions: bool
    looks_back: bool
    joins: bool
    rounds: int
    exchanges: int
    matrices: int

    def lead(self) -> str:
        """The axis along which most of what loops access is contiguous."""
        weights = contiguous_weights(self.looped, self.facts)
        best, most = self.facts.raxes[-1], 0.0
        for axis in (*self.facts.axes, *self.facts.raxes):
            if weights[axis] > most * 1.01 and self.facts.hints[axis] > 1:
                best, most = axis, weights[axis]
        return best

    # --- rows along what is reduced --------------------------------------------------------------------

    def rows_of(self, persistent: bool | None) -> Plan:
        """One row or several for each program."""
        facts = self.facts
        length = product(facts.sizes[r] for r in facts.raxes)
        unsaid = persistent is None
        most = most_of(length)
        if persistent is None:
            persistent = most is not None and power_of_two(most) <= self._longest_row()
        if persistent and most is not None:
            normalises = self.matrices and self.groups is None
            return self._products_of_row(length, most) if normalises else self._whole_rows(length, most)
        count, points = facts.points(facts.axes), facts.points(facts.raxes)
        if self.looks_back and target_info_of(self.target).splits(count, points):
            return self._chunks(count * points)
        together = self.joined(_CLUSTER_CHUNKS[:1]) if unsaid and self._gains_by_joining() else None
        if together is None and unsaid and (programs := self._walkers_that_gain()):
            together = self.walkers(programs)
        return together or self._walked_rows()

    def _chunks(self, points: int) -> Plan:
        """A chunk of a row for each program."""
        facts = self.facts
        each = power_of_two(points // (2 * self.target.multiprocessors))
        block = max(_SHORTEST_CHUNK, min(_CHUNK, each))
        reduced = Dim("r", facts.raxes, product(facts.sizes[r] for r in facts.raxes), block)
        warps = self._warps(block // (_WARP * _MANY), block)
        return Plan((), reduced, facts.axes, (), False, warps, 1, looks_back=True)

    def joined(self, chunks: Sequence[int], most: int = _CLUSTER) -> Plan | None:
        """A chunk of a row for each program of a cluster of at most so many, of the first length that is long
        enough; None where there is none.
        """
        facts = self.facts
        length = product(facts.sizes[r] for r in facts.raxes)
        if not isinstance(length, int) or not self.joins:
            return None
        block = next((p for p in chunks if p < length <= most * p), 0)
        if not block:
            return None
        reduced = Dim("r", facts.raxes, length, block)
        warps = max(1, min(32, block // (_WARP * _CACHED)))
        return Plan((), reduced, facts.axes, (), False, warps, 1, joins=True)

    def walkers(self, programs: int) -> Plan | None:
        """A part of a row for each of some programs of a cluster, which walk it together."""
        facts = self.facts
        length = product(facts.sizes[r] for r in facts.raxes)
        if not isinstance(length, int) or not self.joins or length > _LONGEST_WALK:
            return None
        block = _WALKERS * per_thread(self.looped, facts)
        while block * programs > length:
            block //= 2
        if block < _SHORTEST_CHUNK // 4 or programs < 2:
            return None
        warps = min(_WALKERS, block // 4) // _WARP
        reduced = Dim("r", facts.raxes, length, block)
        return Plan((), reduced, facts.axes, (), False, warps, 1, joins=True, walkers=programs)

    def _gains_by_joining(self) -> bool:
        """Whether rows that are read again are too long for the last cache, and programs of a cluster are
        many, and wait for each other once.
        """
        facts, target = self.facts, self.target
        if not self.rows.rereads or self.rounds != 1 or facts.registers > _VALUES:
            return False
        programs = facts.points(facts.axes) * facts.points(facts.raxes) // _CLUSTER_CHUNKS[0]
        under_way = _RESIDENT // _LARGEST * target.multiprocessors * self._row_bytes()
        return programs >= _PROGRAMS * target.multiprocessors and under_way > target.l2_bytes

    def _walkers_that_gain(self) -> int:
        """How many programs of a cluster walk a row together, where rows that are read again would be under
        way in greater number than the last cache holds, and programs wait for each other once: the fewest
        with which it holds them. 0: one program walks a row.
        """
        facts, target = self.facts, self.target
        if not self.joins or not self.rows.rereads or self.rows.must_stay or self.exchanges != 1:
            return 0
        each = {a.buffer: a.itemsize for a in self.looped if facts.share(a) > 0.5 and not a.is_store}
        points, count = facts.points(facts.raxes), facts.points(facts.axes)
        if not each or points * min(each.values()) % _WIDE or self._row_bytes() < _MOVED * points:
            return 0
        size = points * sum(each.values())
        alone = min(count, _RESIDENT // self._threads_of_walk() * target.multiprocessors)
        if alone * size <= target.l2_bytes:
            return 0
        programs = 2
        while programs <= _CLUSTER:
            under_way = _WALKERS_TOGETHER * target.multiprocessors * size // programs
            share = _STAYS if programs < _CLUSTER else _STAYS_IN_PART
            if under_way <= share * target.l2_bytes:
                return programs if count * programs >= _PROGRAMS * target.multiprocessors else 0
            programs *= 2
        return 0

    def _row_bytes(self) -> int:
        """Bytes of a row of everything that loops access."""
        each = {a.buffer: a.itemsize for a in self.looped if self.facts.share(a) > 0.5}
        return self.facts.points(self.facts.raxes) * sum(each.values())

    def _longest_row(self) -> int:
        if self.rows.must_stay:
            return _ROW_FORCED
        if self.groups is not None:
            return _ROW
        limit = _ROW if self.rows.revisits else _ROW_ONCE
        while limit * self.facts.registers > _THREADS * REGISTERS:
            limit //= 2
        return limit

    def _whole_rows(self, length: IndexLike, most: int) -> Plan:
        """Rows that fit in registers: of a length that is at most so many points."""
        facts = self.facts
        block = power_of_two(max(1, most))
        if self._comes_from_cache(block):
            return self._cached_rows(length, block)
        count = facts.points(facts.axes)
        side = 1 if self.groups is not None else max(1, _TILE // block)
        while side > 1 and count < 2 * self.target.multiprocessors * side:
            side //= 2
        reduced = Dim("r", facts.raxes, length, block)
        tiles, grid = self._tile_of_rows(side)
        elements = block * (tiles[0].block if tiles else 1)
        warps = max(1, min(16, elements // (_WARP * self._points_of_thread(elements))))
        # the next row of a group is loaded while one is worked on
        stages = 1 if self.groups is None else 2
        return Plan(tiles, reduced, grid, (), True, self._warps(warps, elements), stages, self.groups)

    def _comes_from_cache(self, block: int) -> bool:
        """Whether all that rows are made of fits in the last cache, there are rows for all multiprocessors,
        and their programs soon have started.
        """
        count = self.facts.points(self.facts.axes)
        few = count < _PROGRAMS * self.target.multiprocessors
        if self.groups is not None or few or count > _CACHED_PROGRAMS * self._side_of_cached(block):
            return False
        return count * self._row_bytes() <= self.target.l2_bytes // 2

    def _side_of_cached(self, block: int) -> int:
        """Rows of a program that come from the last cache: two short ones."""
        return 2 if 2 * block * self._widest() <= _WARP_BYTES else 1

    def _widest(self) -> int:
        return max((a.itemsize for a in self.looped if self.facts.share(a) > 0.5), default=4)

    def _cached_rows(self, length: IndexLike, block: int) -> Plan:
        """Rows that come from the last cache. Most of their time is that threads wait for each other: a row
        of one warp does without, and longer ones have few warps, unless there are few rows.
        """
        facts, target = self.facts, self.target
        count, side = facts.points(facts.axes), self._side_of_cached(block)
        tiles, grid = self._tile_of_rows(side)
        elements = block * (tiles[0].block if tiles else 1)
        size = elements * self._widest()
        fewest = 1 if size <= _WARP_BYTES else size // (_WARP * _THREAD_BYTES)
        while elements * facts.registers > fewest * _WARP * _CACHED_REGISTERS:
            fewest *= 2
        busy = power_of_two(-(-_CACHED_WARPS * target.multiprocessors * side // max(1, count)))
        warps = max(fewest, min(busy, elements // (_WARP * _FEW)))
        reduced = Dim("r", facts.raxes, length, block)
        return Plan(tiles, reduced, grid, (), True, min(16, warps), 1)

    def _products_of_row(self, length: IndexLike, most: int) -> Plan:
        """Whole rows of matrices; two for each program, where there is one matrix, so that the row that they
        are multiplied by is normalised half as often.
        """
        facts, block = self.facts, power_of_two(max(1, most))
        count, side = facts.points(facts.axes), max(2 if self.matrices == 1 else 1, _TILE // block)
        while side > 1 and count < 2 * self.target.multiprocessors * side:
            side //= 2
        tiles, grid = self._tile_of_rows(side)
        elements = block * (tiles[0].block if tiles else 1)
        warps = max(_PRODUCT_WARPS, min(16, self.matrices * elements // (_WARP * _PRODUCT_POINTS)))
        reduced = Dim("r", facts.raxes, length, block)
        return Plan(tiles, reduced, grid, (), True, self._warps(warps, elements), 1)

    def _points_of_thread(self, elements: int) -> int:
        """Points of whole rows for each thread.

        With more of them fewer threads wait for each other, and more rows are under way at a time, as long as
        there are rows for all multiprocessors. That counts where reading a row is not what takes most time:
        its data are narrow, what is carried along has several parts, or threads wait for each other several
        times and no row is written meanwhile.
        """
        full = [a for a in self.looped if self.facts.share(a) > 0.5]
        waits = self.rounds > 1 and not any(a.is_store for a in full)
        if min((a.itemsize for a in full), default=4) >= 4 and not self.positions and not waits:
            return _FEW
        points = self.facts.points((*self.facts.axes, *self.facts.raxes))
        busy = points >= 2 * _PROGRAMS * self.target.multiprocessors * elements
        room = REGISTERS if waits else REGISTERS * 3 // 4
        return _MANY if busy and _MANY * self.facts.registers <= room else _FEW

    def _warps(self, count: int, elements: int) -> int:
        """More warps where the values of a thread's points would not fit in its registers."""
        while count < 32 and elements * self.facts.registers > count * _WARP * REGISTERS * 1.5:
            count *= 2
        return count

    def _tile_of_rows(self, side: int) -> tuple[tuple[Dim, ...], tuple[str, ...]]:
        """The tile dimension over rows, where a tile has several, and the axes outside."""
        facts = self.facts
        side = min(side, power_of_two(max(1, facts.points(facts.axes))))
        if side == 1 or not facts.axes:
            return (), facts.axes
        group, _ = grown(facts, facts.axes, facts.axes[-1], 4 * side, waste=2.0)
        block = min(side, power_of_two(facts.points(group)))
        rest = tuple(a for a in facts.axes if a not in group)
        return (Dim("x", group, product(facts.sizes[a] for a in group), block),), rest

    def _walked_rows(self) -> Plan:
        facts = self.facts
        most = self._threads_of_walk() // _WARP
        wanted = most * _WARP * per_thread(self.looped, facts)
        group = self._joined(wanted)
        extent = facts.points(group)
        block = min(wanted, power_of_two(max(1, extent)))
        side = 1
        count = facts.points(facts.axes)
        while side * block < wanted and count >= 4 * self.target.multiprocessors * side:
            side *= 2
        tiles, grid = self._tile_of_rows(side)
        reduced = Dim("r", group, product(facts.sizes[a] for a in group), block)
        serial = tuple(r for r in facts.raxes if r not in group)
        elements = block * (tiles[0].block if tiles else 1)
        warps = self._warps(max(1, min(most, elements // (_WARP * 4))), elements)
        return Plan(tiles, reduced, grid, serial, False, warps, 1)

    def _threads_of_walk(self) -> int:
        """Threads that walk a row together: more where the rows under way at a time then stay in the last
        cache until another section reads them again, and where there are few rows.
        """
        facts, target = self.facts, self.target
        count = facts.points(facts.axes)
        threads = _THREADS // 2
        if self.scans:
            return threads
        while threads < _LARGEST and 2 * threads * count <= _RESIDENT * target.multiprocessors:
            threads *= 2
        size = self._row_bytes()
        if not self.rows.rereads or 2 * size * target.multiprocessors > target.l2_bytes:
            return threads
        bytes_at_once = target.multiprocessors * size
        while threads < _LARGEST and _RESIDENT // threads * bytes_at_once > target.l2_bytes // 2:
            threads *= 2
        return threads

    def _joined(self, wanted: int) -> tuple[str, ...]:
        """Reduction axes that are walked as one: from the innermost outwards until that is long enough."""
        facts = self.facts
        group = [facts.raxes[-1]]
        for name in reversed(facts.raxes[:-1]):
            if facts.points(tuple(group)) >= wanted and not self.scans:
                break
            if any(not isinstance(facts.sizes[r], int) for r in group) and not self.scans:
                break
            group.insert(0, name)
        return tuple(group)

    # --- columns across what is reduced ----------------------------------------------------------------

    def columns(self, lead: str, persistent: bool | None) -> Plan:
        """A chunk of a contiguous parallel axis for each program."""
        facts = self.facts
        widest = max((a.itemsize for a in self.looped if facts.share(a) > 0.5), default=4)
        side = max(16, min(128, 256 // widest))
        parts = grown(facts, facts.axes, lead, side, waste=1.5)[0]
        extent = facts.points(parts)
        side = min(side, power_of_two(max(1, extent)))
        least = max(8, 32 // widest)
        while side > least and facts.points(facts.axes) < 2 * self.target.multiprocessors * side:
            side //= 2
        length = product(facts.sizes[r] for r in facts.raxes)
        most = most_of(length)
        whole = 0 if most is None else power_of_two(most)
        if persistent is None:
            limit = _ROW_FORCED // side if self.rows.must_stay else _CACHED_COLUMNS
            persistent = 0 < whole <= limit
        x = Dim("x", parts, product(facts.sizes[a] for a in parts), side)
        grid = tuple(a for a in facts.axes if a not in parts)
        if persistent and whole:
            reduced = Dim("r", facts.raxes, length, whole)
            serial: tuple[str, ...] = ()
        else:
            persistent = False
            group = self._joined(_CACHED_COLUMNS)
            extent = facts.points(group)
            block = min(max(8, 4096 // side), power_of_two(max(1, extent)))
            reduced = Dim("r", group, product(facts.sizes[a] for a in group), block)
            serial = tuple(r for r in facts.raxes if r not in group)
        elements = side * reduced.block
        warps = self._warps(max(1, min(16 if persistent else 8, elements // (_WARP * 8))), elements)
        return Plan((x,), reduced, grid, serial, persistent, warps, 1)
