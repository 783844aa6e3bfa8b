"""Tiles of a convolution of groups, and whether each lies in one line of the image.

Then a row is a constant number of elements behind the one before, and so is a tap, so that an instruction
holds how far away it is. What lies beyond the border is left out: lines by a loop that is shorter, pixels of
a line by code for the first tile of a line, for the last one and for those between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from polyfuse.ir.statements import Compute, Constant, IndexValue, Statement
from polyfuse.ir.types import DType
from polyfuse.kit import stride
from polyfuse.symbolic import evaluate, free_axes, free_symbols
from polyfuse_cpp.matmul.problem import Matmul
from polyfuse_cpp.matmul.window import PAGE, Window, block_width, lanes_of, window_of

_POINTERS = 6
"""Rows of a tile of groups that each have an address in a register."""

_SIDE_BY_SIDE = 4
"""Blocks whose tiles are added up side by side."""

_ALONE = 14
"""Rows of a tile of one block alone, of whose weight each vector serves all of them."""

ENOUGH: Final = 14
"""Sums of a tile of all channels that hide how long an addition takes."""

_HIDING = 7
"""Sums of a tile that nearly hide how long an addition takes."""

_WRITTEN = 350
"""Multiplications of a line of taps that are written one after the other."""

_MOST_TAPS = 8


@dataclass(frozen=True)
class Bounds:
    """What is there of a line, or which lines are: ``low <= step * pixel + apart * tap < high``."""

    step: int
    apart: int
    low: int
    high: int


@dataclass(frozen=True)
class GroupLines:
    """Tiles that are a part of a line of the image each.

    Attributes:
        along: the axis of the rows of a line.
        length: rows of a line.
        taps: of a line.
        row: elements from one row to the next.
        tap: elements from one tap to the next.
        inside: of the pixels of a line; None: all of them are there.
        down: the axis of the lines of the result; empty: there is one.
        lines: the axis of the taps that count lines; empty: there is one.
        line: elements from one line to the next.
        there: of the lines; None: all of them are there.
        chunk: channels whose multiplications are written one after the other.
    """

    along: str
    length: int
    taps: int
    row: int
    tap: int
    inside: Bounds | None
    down: str
    lines: str
    line: int
    there: Bounds | None
    chunk: int

    def cases(self, rows: int) -> dict[tuple[int, int], tuple[int, ...]]:
        """What the first tile of a line, the last one and those between see, and the rows with which
        the first two begin. The last case is that of all others.
        """
        between = [self.seen(start, rows) for start in range(rows, self.length - rows, rows)[:1]]
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        for start in dict.fromkeys((0, self.length - rows)):
            seen = self.seen(start, rows)
            if seen not in between:
                found[seen] = (*found.get(seen, ()), start)
        return {**found, **dict.fromkeys(between, ())}

    def seen(self, first: int, rows: int) -> tuple[int, int]:
        """From and to which ``step * row + apart * tap`` a tile of so many rows has pixels that are there."""
        bounds = self.inside
        if bounds is None:
            return 0, 1
        most = bounds.step * (rows - 1) + bounds.apart * (self.taps - 1) + 1
        start = bounds.step * first
        return max(bounds.low - start, 0), min(bounds.high - start, most)


def grouped_tile(matmul: Matmul, lanes: int, registers: int, each: int) -> tuple[int, int, int]:
    """Rows and vectors of a tile of a convolution of groups, and blocks that are added up side by side.

    Args:
        registers: that there are, of which a vector takes `each`.
    """
    part = lanes_of(matmul, lanes)
    vectors = block_width(matmul) // part
    if rows := _rows_of_line(matmul, vectors, registers, each):
        return rows, vectors, 1
    if registers == 32 and vectors * each == 1 and part * 2 >= lanes:
        # where a group is one vector, or a part, its weight is what is loaded most
        rows = matmul.extent(matmul.a.axes)
        rows = -(-rows // -(-rows // _ALONE))
        return -(-rows // (lanes // part)) * (lanes // part), 1, 1
    sums = 24 if registers == 32 else 12
    # each row takes a register for its address, so there are few
    rows = max(1, min(_POINTERS, sums // (vectors * each)))
    # the sums of a tile are looked at in whole vectors
    step = lanes // gcd(lanes, vectors * part)
    rows = max(step, rows // step * step)
    return rows, vectors, min(max(1, sums // (rows * vectors * each)), _SIDE_BY_SIDE)


def line_tile(matmul: Matmul, width: int, lanes: int, registers: int, each: int) -> tuple[int, int]:
    """Rows and vectors of tiles along lines of a convolution of all channels; zeros: it has others.

    Args:
        width: columns of a block.
        registers: that there are, of which a vector takes `each`.
    """
    plain = matmul.dtype is matmul.b.memory is DType.f32 and width > 0 and width % lanes == 0
    single = all(matmul.facts.sizes[name] == 1 for name in (*matmul.batch, *matmul.b.axes[:-1]))
    if registers < 32 or not plain or not single:
        return 0, 0
    vectors = width // lanes
    rows = _rows_of_line(matmul, vectors, registers, each)
    return (rows, vectors) if rows * vectors >= ENOUGH else (0, 0)


def _rows_of_line(matmul: Matmul, vectors: int, registers: int, each: int) -> int:
    """Rows of tiles that divide a line of the image; 0: there are no good ones."""
    rows = line_rows(matmul.extent(_moving(matmul)[-1:]), vectors, registers, each)
    if rows * vectors < _HIDING or group_lines(matmul, rows, vectors) is None:
        return 0
    return rows


def line_rows(length: int, vectors: int, registers: int, each: int) -> int:
    """The most rows that divide a line of so many, whose sums the registers hold."""
    most = min(_ALONE, (registers - 4) // each // vectors)
    return next((n for n in range(most, 0, -1) if length % n == 0), 0)


def _moving(matmul: Matmul) -> list[str]:
    return [name for name in matmul.a.axes if matmul.facts.sizes[name] != 1]


def group_lines(matmul: Matmul, rows: int, vectors: int) -> GroupLines | None:
    """How tiles of `rows` rows and so many vectors lie in lines; None where they do not."""
    sizes, window, moving = matmul.facts.sizes, window_of(matmul), _moving(matmul)
    if window is None or not moving or not isinstance(window.length, int):
        return None
    along, index = moving[-1], window.load.index
    if window.run not in matmul.depth:  # an image of one channel
        return None
    taps = [name for name in window.taps if sizes[name] != 1]
    if len(taps) > 2:
        return None
    across, lines = (taps[-1] if taps else ""), (taps[-2] if len(taps) > 1 else "")
    down = moving[-2] if len(moving) > 1 else ""
    length, count = sizes[along], sizes[across] if across else 1
    row, tap, line = (stride(index, name) if name else 0 for name in (along, across, lines))
    if not isinstance(length, int) or not isinstance(count, int) or length % rows or count > _MOST_TAPS:
        return None
    if not isinstance(row, int) or not isinstance(tap, int) or not isinstance(line, int):
        return None
    if row * matmul.dtype.itemsize % PAGE == 0 and rows > 1:  # all rows would share a set of the cache
        return None
    found = _bounds(window, ((along, across), (down, lines)))
    most = _WRITTEN // (count * rows * vectors)
    chunk = next((n for n in range(min(most, window.length), 0, -1) if window.length % n == 0), 0)
    if found is None or chunk == 0:
        return None
    inside, there = found
    if there is not None and there.apart == 0:
        return None
    tiles = GroupLines(along, length, count, row, tap, inside, down, lines, line, there, chunk)
    # tiles between the first and the last of a line are alike
    between = {tiles.seen(first, rows) for first in range(rows, length - rows, rows)}
    return tiles if len(between) <= 1 else None


def _bounds(window: Window, pairs: Sequence[tuple[str, str]]) -> tuple[Bounds | None, ...] | None:
    """What conditions ask of the indices of each pair of axes: one that counts results, and one of taps.
    None where they ask something else.
    """
    values: dict[str, Statement] = {t: stmt for stmt in window.conditions for t in stmt.targets}
    found: dict[tuple[str, str], Bounds] = {}
    for stmt in window.conditions:
        if isinstance(stmt, Compute) and stmt.op != "bitwise_and":
            value, limit = values.get(stmt.args[0]), values.get(stmt.args[-1])
            if not isinstance(value, IndexValue) or not isinstance(limit, Constant):
                return None
            axes = set(free_axes(value.index))
            pair = next((pair for pair in pairs if axes <= set(pair)), None)
            bounds = None if pair is None else _tested(stmt.op, value, int(limit.value), *pair)
            if pair is None or bounds is None:
                return None
            before = found.setdefault(pair, bounds)
            if (before.step, before.apart) != (bounds.step, bounds.apart):
                return None
            low, high = max(before.low, bounds.low), min(before.high, bounds.high)
            found[pair] = Bounds(bounds.step, bounds.apart, low, high)
        elif not isinstance(stmt, (IndexValue, Constant, Compute)):
            return None
    return tuple(found.get(pair) for pair in pairs)


def _tested(op: str, value: IndexValue, limit: int, pixel: str, tap: str) -> Bounds | None:
    """What one test asks."""
    steps = [stride(value.index, name) if name else 0 for name in (pixel, tap)]
    if free_symbols(value.index) or not all(isinstance(step, int) and step >= 0 for step in steps):
        return None
    step, apart = steps
    assert isinstance(step, int) and isinstance(apart, int)
    at = dict.fromkeys(free_axes(value.index), 0)
    limit -= evaluate(value.index, at)
    far = 1 << 40
    if op in ("ge", "gt"):
        return Bounds(step, apart, limit + (op == "gt"), far)
    if op in ("lt", "le"):
        return Bounds(step, apart, -far, limit + (op == "le"))
    return None
