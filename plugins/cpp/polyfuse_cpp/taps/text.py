"""Sums under a window as C++ text.

    for every row that a thread has
      for every few columns of it
        for every vector of channels: add up the taps of these columns in registers, and finish each of them

Which columns lie beyond the border for a tap is known when the text is written: their products are left out.
What a weight serves is a whole tile of columns, so that nearly all that is read is the image. The last vector
of channels begins earlier where these fill no whole ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby

from polyfuse.ir.statements import Compute, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, product
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.scope import Value
from polyfuse_cpp.loops.stage import StageText
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.taps.problem import Interval, Tap, Window

_COLUMNS = (7, 8, 6, 5)
"""Columns of a tile, the best first: sums of so many and a weight stay in 16 registers."""

_MOST_TILES = 5
"""Kinds of tiles of a row, each with text of its own."""

_MOST_LINES = 1200


@dataclass(frozen=True)
class _Tiles:
    """Neighbouring tiles with one text: the first column of the first, tiles, and columns of each."""

    first: int
    count: int
    columns: int


def fits(facts: Facts, window: Window) -> bool:
    """Whether the text of a window is not too long."""
    tiles = _tiles(facts, window)
    each = 2 if window.taps[0].image.dtype is DType.f32 else _COLUMNS[0]
    lines = sum(each * len(window.taps) + t.columns * len(window.body) for t in tiles)
    return len(tiles) <= _MOST_TILES and lines <= _MOST_LINES


def _tiles(facts: Facts, window: Window) -> list[_Tiles]:
    """The tiles of a row, those together that leave out the same columns."""
    width = facts.sizes[window.column]
    assert isinstance(width, int)
    wide = min(_COLUMNS, key=lambda n: (-(-width // n) * n - width, _COLUMNS.index(n)))
    wide = min(wide, width)

    def kind(first: int) -> tuple[int, tuple[Interval, ...]]:
        columns = min(wide, width - first)
        return columns, tuple(_within(t.columns, first, columns) for t in window.taps)

    found = []
    for (columns, _), firsts in groupby(range(0, width, wide), kind):
        all_of = list(firsts)
        found.append(_Tiles(all_of[0], len(all_of), columns))
    return found


def _within(columns: Interval, first: int, count: int) -> Interval:
    """The columns of a tile that lie in an interval."""
    start, end = (min(max(at - first, 0), count) for at in columns)
    return start, max(start, end)


@dataclass
class TapsText(StageText):
    """The function that does a range of a kernel's rows, or of its channels where their means are taken."""

    window: Window

    def __post_init__(self) -> None:
        super().__post_init__()
        # what a tile stores is a line of each column, and no whole ones in a row
        self.streaming, self.new_pages, self.tables = frozenset(), [], None
        self.interleaved, self.together = {}, 1
        window, plan = self.window, self.plan
        self.outer = plan.axes[:-1] if window.mean else tuple(a for a in plan.axes[:-1] if a != window.column)
        inner = {*window.planes, window.row, window.column} if window.mean else set(plan.axes) - {window.lane}
        size = self.facts.sizes[window.lane]
        assert isinstance(size, int)
        self.blocks = -(-size // plan.lanes)
        self.per_channel = self._per_channel(inner)

    def _per_channel(self, inner: Collection[str]) -> tuple[str, ...]:
        """Values of each channel that are computed once."""
        depends, window = self.facts.depends, self.window
        made = {s.target: s for s in (*window.before, *window.body) if isinstance(s, Compute)}
        own = {n for n, s in made.items() if s.dtype is DType.f32 and depends[n].isdisjoint(inner)}
        own = {n for n in own if window.lane in depends[n]}
        outside = [s for s in (*window.body, *window.after) if not s.targets or s.targets[0] not in own]
        return tuple(dict.fromkeys(name for s in outside for name in s.args if name in own))

    def items_text(self) -> str:
        return index_text(product(self.facts.sizes[a] for a in self.outer) * self.blocks)

    def _items(self) -> None:
        out, window, size = self.out, self.window, self.blocks * self.plan.lanes
        self.features |= {"kernel", "taps"}
        for name in self.per_channel:
            out.line(f"alignas(64) f32 channel_{name}[{size}];")
        if window.mean:
            out.line(f"alignas(64) f32 totals[{size}], line[{size}];")
        self._odometer(self.outer, f"begin / {self.blocks}")
        if not window.mean:
            self._keep("0", str(self.blocks))
        out.line(f"i64 at_block = begin % {self.blocks};")
        with out.block("for (i64 item = begin; item < end;)"):
            out.line(f"const i64 stop = index_min({self.blocks}, at_block + end - item);")
            if window.mean:
                self._mean()
            else:
                self._row()
            out.line("item += stop - at_block;")
            out.line("at_block = 0;")
            self._advance(self.outer)

    def _mean(self) -> None:
        """All rows of some channels, and what is made of their sums: those of a row are added up first."""
        out, window, lanes = self.out, self.window, self.plan.lanes
        assert window.mean
        self._keep("at_block", "stop")
        channels = f"i64 k = at_block * {lanes}; k < stop * {lanes}; ++k"
        out.line(f"for ({channels}) totals[k] = line[k] = f32(0);")
        with ExitStack() as loops:
            for name in (*window.planes, window.row):
                size = index_text(self.facts.sizes[name])
                loops.enter_context(out.block(f"for (i64 {name} = 0; {name} < {size}; ++{name})"))
            self._row()
            out.line(f"for ({channels}) totals[k] += line[k], line[k] = f32(0);")
        with self._vectors("at_block", "stop"):
            frame = self._frame()
            (target,) = window.mean.targets
            out.line(f"const auto {target} = load<Vec>(totals + block * {lanes});")
            frame.env[target] = Value(DType.f32, True, (target,))
            self._emit(frame, window.after)

    @contextmanager
    def _vectors(self, first: str, end: str) -> Iterator[None]:
        """A loop over vectors of channels: `block` counts them, the lane axis is where one begins."""
        lane, lanes = self.plan.lane, self.plan.lanes
        size = self.facts.sizes[lane]
        assert isinstance(size, int)
        with self.out.block(f"for (i64 block = {first}; block < {end}; ++block)"):
            start = f"block * {lanes}"
            overlapping = f"index_min({start}, {size - lanes})"
            self.out.line(f"const i64 {lane} = {overlapping if size % lanes else start};")
            yield

    def _frame(self, *, loaded: bool = True) -> Frame:
        """A level inside a loop over vectors of channels."""
        frame = self.frame(self.plan.lane)
        for name in self.per_channel if loaded else ():
            self.out.line(f"const auto {name} = load<Vec>(channel_{name} + block * {self.plan.lanes});")
            frame.env[name] = Value(DType.f32, True, (name,))
        return frame

    def _keep(self, first: str, end: str) -> None:
        """Compute what is computed once for each channel, and store what is known before the points."""
        window = self.window
        stores = [s for s in window.before if isinstance(s, Store)]
        if not self.per_channel and not stores:
            return
        with self._vectors(first, end):
            frame = self._frame(loaded=False)
            self._emit(frame, stores, self.per_channel)
            for name in self.per_channel:
                text = frame.text(name, True)
                self.out.line(f"store(channel_{name} + block * {self.plan.lanes}, {text});")

    def _emit(self, frame: Frame, roots: Sequence[Statement], names: Sequence[str] = ()) -> None:
        """Write statements, and before them what they and some values need and what is not known yet."""
        for stmt in self._needed(roots, names, frame.env):
            frame.emit(stmt)

    def _needed(
        self, roots: Sequence[Statement], names: Sequence[str], known: Collection[str]
    ) -> list[Statement]:
        needed = {*names, *(a for s in roots for a in s.args)} - set(known)
        wanted = {id(s) for s in roots}
        for stmt in reversed(self.facts.statements):
            if needed & set(stmt.targets):
                wanted.add(id(stmt))
                needed |= set(stmt.args) - set(known)
        return [s for s in self.facts.statements if id(s) in wanted]

    def _row(self) -> None:
        """A row of some channels."""
        out = self.out
        for tiles in _tiles(self.facts, self.window):
            if tiles.count == 1:
                with out.block():
                    self._tile(tiles, str(tiles.first))
                continue
            end = tiles.first + tiles.count * tiles.columns
            with out.block(f"for (i64 first = {tiles.first}; first < {end}; first += {tiles.columns})"):
                self._tile(tiles, "first")

    def _tile(self, tiles: _Tiles, first: str) -> None:
        out, window = self.out, self.window
        sums = [f"sum_{j}" for j in range(tiles.columns)]
        with self._vectors("at_block", "stop"):
            out.line(f"vf32 {', '.join(f'{name} = fill<vf32>(f32(0))' for name in sums)};")
            for (limits, zeros), group in groupby(window.taps, lambda t: (t.limits, t.zeros)):
                taps = list(group)
                tests = [f"{name} >= {low} && {name} < {end}" for name, (low, end) in limits]
                with out.block(f"if ({' && '.join(tests)})" if tests else ""):
                    self._taps(taps, tiles, first, sums)
                if zeros and tests:
                    with out.block("else"):
                        for tap in taps:
                            out.line(f"add_zeros({self._weight(tap)}, {', '.join(sums)});")
            frame = self._frame()
            self._finish(frame, tiles, first, sums)

    def _finish(self, frame: Frame, tiles: _Tiles, first: str, sums: Sequence[str]) -> None:
        """What is done with the sums of a tile, of each column by itself."""
        out, window, mean, lanes = self.out, self.window, self.window.mean, self.plan.lanes
        roots = [s for s in window.body if isinstance(s, Store)]
        added = mean.args[0] if mean else ""
        needed = self._needed(roots, [added] if mean else [], {*frame.env, window.total})
        for stmt in needed:
            if stmt.targets and window.column not in self.facts.depends_of(stmt):
                frame.emit(stmt)
        if mean:
            out.line(f"auto mean = load<Vec>(line + block * {lanes});")
        for j, name in enumerate(sums):
            with out.block():
                out.line(
                    f"const i64 {window.column} = {tiles.first + j if first.isdigit() else f'{first} + {j}'};"
                )
                point = frame.child()
                point.env[window.total] = Value(DType.f32, True, (name,))
                for stmt in needed:
                    if not stmt.targets or stmt.targets[0] not in point.env:
                        point.emit(stmt)
                if mean:
                    out.line(f"mean = add(mean, {point.text(added, True)});")
        if mean:
            out.line(f"store(line + block * {lanes}, mean);")

    def _weight(self, tap: Tap) -> str:
        return f"load<Vec>({tap.weight.buffer} + {index_text(tap.weight.index)})"

    def _taps(self, taps: Sequence[Tap], tiles: _Tiles, first: str, sums: Sequence[str]) -> None:
        """Some taps of a tile. Numbers of 16 bits are widened once for all taps that read them."""
        if taps[0].image.dtype is DType.f32:
            for tap in taps:
                self._tap(tap, tiles, first, sums)
            return
        read: dict[tuple[str, IndexLike], str] = {}
        for number, tap in enumerate(taps):
            start, end = _within(tap.columns, tiles.first, tiles.columns)
            outside = [*sums[:start], *sums[end:]]
            self.out.line(f"const vf32 weight_{number} = {self._weight(tap)};")
            if tap.zeros and outside:
                self.out.line(f"add_zeros(weight_{number}, {', '.join(outside)});")
            for column in range(start, end):
                at = (tap.image.buffer, tap.image.index + column * self.window.step)
                if at not in read:
                    read[at] = f"image_{len(read)}"
                    where = index_text(at[1], {self.window.column: first})
                    self.out.line(f"const vf32 {read[at]} = load<Vec>({at[0]} + {where});")
                self.out.line(f"{sums[column]} = madd({read[at]}, weight_{number}, {sums[column]});")

    def _tap(self, tap: Tap, tiles: _Tiles, first: str, sums: Sequence[str]) -> None:
        start, end = _within(tap.columns, tiles.first, tiles.columns)
        outside = [*sums[:start], *sums[end:]]
        if tap.zeros and outside:
            self.out.line(f"add_zeros({self._weight(tap)}, {', '.join(outside)});")
        if start < end:
            column = str(tiles.first + start) if first.isdigit() else f"({first} + {start})"
            at = f"{tap.image.buffer} + {index_text(tap.image.index, {self.window.column: column})}"
            some = ", ".join(sums[start:end])
            self.out.line(f"add_taps<{self.window.step}>({at}, {self._weight(tap)}, {some});")
