"""Operand A of a convolution: pixels under a window, whose channels lie side by side in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from polyfuse.ir.statements import Compute, Constant, IndexValue, Load, Statement
from polyfuse.ir.types import DType
from polyfuse.kit import backward_slice, stride
from polyfuse.symbolic import IndexLike, product
from polyfuse_cpp.matmul.problem import Matmul
from polyfuse_cpp.memory.address import index_text

_TESTS = ("ge", "lt", "le", "gt", "bitwise_and")
PAGE, _MOST_ROWS = 4096, 6
"""Bytes after which addresses share a set of the L1 cache, and rows that find room there."""
_HIDES, _ENOUGH = 20, 16
"""Sums of a tile that surely hide how long an addition takes, also where fewer would do, and fewer that do
where a tile has all columns: others would have columns that nobody needs, or rows of two lines."""
_BEGINNING, _COPYING, _TILE = 24, 3, 120
"""Half cycles to begin packing a run of a row, to copy a vector of it, and to begin and end a tile."""
_FEWEST_COLUMNS, _PARTS = 8, 5
"""Columns of a group, and parts of vectors that hold them: with more, registers hold sums of too few rows."""

_CHANNEL = "channel"
"""The name of a run of one element."""

_FETCHED = 2
"""Multiplications in whose time a byte comes from memory to one thread."""


@dataclass(frozen=True)
class Window:
    """An operand that is loaded in runs: a run is there as a whole, or as a whole it is zero.

    Attributes:
        load: of an element.
        conditions: the statements that tell whether that is there.
        run: the axis of the depth along which elements lie side by side, its last one; a name of no axis for
            an image of one channel, where a run is one element.
        length: elements of a run.
        taps: the other axes of the depth.
    """

    load: Load
    conditions: tuple[Statement, ...]
    run: str
    length: IndexLike
    taps: tuple[str, ...]

    @property
    def address(self) -> str:
        """Text of where an element is."""
        return f"{self.load.buffer} + {index_text(self.load.index)}"

    @property
    def mask(self) -> str:
        """The name of the condition; empty where all is there."""
        return self.load.mask or ""


@dataclass(frozen=True)
class Slide:
    """How neighbouring rows of a window lie in memory, where all of their elements are there: each row has
    some chunks, and those of the next row are one distance further.

    Attributes:
        along: the axis of the rows.
        pitch: elements from one row to the next.
        outer: the axes of the depth that count chunks, the last one fastest; none if there is one chunk.
        apart: elements from one chunk to the next along each of them.
        length: steps of the depth in a chunk.
    """

    along: str
    pitch: int
    outer: tuple[str, ...]
    apart: tuple[IndexLike, ...]
    length: IndexLike

    @property
    def planes(self) -> bool:
        """Whether chunks lie one distance apart within planes only: windows over time and space."""
        return len(self.outer) > 1


@dataclass(frozen=True)
class Strip:
    """The pixels under the windows of a tile in one line of the image, copied with zeros beyond its border.

    Attributes:
        across: the axis of the taps in a line, of which a tap further is a pixel further.
        pixels: of a line.
        width: elements of a pixel.
        lines: the most lines (chunks) that a pass over the depth reads.
        whole: whether a pass is so many whole ones, unless one is all.
    """

    across: str
    pixels: int
    width: int
    lines: int
    whole: bool

    @property
    def size(self) -> int:
        """Elements of a line."""
        return self.pixels * self.width


def window_of(matmul: Matmul) -> Window | None:
    """Operand A as a window; None where it is none."""
    side, facts, moving = matmul.a, matmul.facts, matmul.moving_depth
    load = side.operand.body[-1]
    if not moving or not isinstance(load, Load) or load.indirect or load.target != side.operand.value:
        return None
    if load.mask is None and len(moving) == 1:  # a plain matrix
        return None
    run = moving[-1]
    if facts.memory[load.buffer] is not matmul.dtype or stride(load.index, run) != 1:
        return None
    taps = matmul.depth[: matmul.depth.index(run)]
    if load.mask is None:
        return Window(load, (), run, facts.sizes[run], taps)
    conditions = backward_slice(side.operand.body[:-1], [load.mask])
    other = facts.definition(load.other or "")
    if not isinstance(other, Constant) or other.value != 0:
        return None
    if any(isinstance(stmt, Load) for stmt in conditions):
        return None
    if not any(run in facts.depends_of(stmt) for stmt in conditions):
        return Window(load, conditions, run, facts.sizes[run], taps)
    if any(facts.sizes[name] != 1 for name in matmul.batch):
        return None
    return Window(load, conditions, _CHANNEL, 1, matmul.depth)


def group_of(matmul: Matmul, lanes: int) -> str:
    """The axis that counts groups of channels, each of them convolved with weights of its own that lie in
    blocks of whole vectors, or of parts of one; empty where there is none.
    """
    sizes, window = matmul.facts.sizes, window_of(matmul)
    width = block_width(matmul)
    part = part_lanes(width, lanes) if width else 0
    narrow = matmul.dtype is matmul.b.memory is DType.f32 and width == sizes[matmul.b.axes[-1]]
    if part == 0 or (part != lanes and not narrow):
        return ""
    moving = [name for name in matmul.batch if sizes[name] != 1]
    if window is None or len(moving) != 1 or any(sizes[name] != 1 for name in matmul.b.axes[:-1]):
        return ""
    (group,), needed = moving, (*moving, window.run, *window.taps)
    if any(group in matmul.facts.depends_of(stmt) for stmt in window.conditions):
        return ""
    fixed = isinstance(stride(window.load.index, group), int)
    return group if fixed and all(isinstance(sizes[name], int) for name in needed) else ""


def part_lanes(columns: int, lanes: int) -> int:
    """Lanes of the vectors, or of the parts of vectors, that hold so many columns of a group of channels;
    0: none do.
    """
    if columns % lanes == 0:
        return lanes
    parts = (n for n in (8, 4) if n < lanes and columns % n == 0 and columns <= _PARTS * n)
    return next(parts, 0) if columns >= _FEWEST_COLUMNS else 0


def lanes_of(matmul: Matmul, lanes: int) -> int:
    """Lanes of the vectors of a tile."""
    return part_lanes(block_width(matmul), lanes) if group_of(matmul, lanes) else lanes


def block_width(matmul: Matmul) -> int:
    """Columns of a block of operand B, if it lies in blocks; all of a group's may be one."""
    side = matmul.b
    size = matmul.facts.sizes[side.axes[-1]]
    whole = isinstance(size, int) and side.apart == 1 and side.step == size
    return side.packed_width or (size if whole and isinstance(size, int) else 0)


def slide_of(matmul: Matmul, window: Window, rows: int) -> Slide | None:
    """How `rows` neighbouring rows lie; None where that is not alike for all of them, or where not all is
    there between a first and a last element that are.
    """
    sizes, index = matmul.facts.sizes, window.load.index
    moving = [name for name in matmul.a.axes if sizes[name] != 1]
    pitch = stride(index, moving[-1]) if moving else None
    if not isinstance(pitch, int) or pitch <= 0 or not _grow(window.conditions, (*moving, *window.taps)):
        return None
    if pitch * matmul.dtype.itemsize % PAGE == 0 and rows > _MOST_ROWS:
        return None
    length, outer = window.length, [name for name in window.taps if sizes[name] != 1]
    while outer and stride(index, outer[-1]) == length:
        length = length * sizes[outer.pop()]
    apart = [step for name in outer if (step := stride(index, name)) is not None]
    return Slide(moving[-1], pitch, tuple(outer), tuple(apart), length) if len(apart) == len(outer) else None


def strip_of(matmul: Matmul, window: Window, slide: Slide, rows: int, depth: int) -> Strip | None:
    """How a tile of `rows` rows is copied for passes of `depth` steps; None where rows that are packed one by
    one take less room, or where it takes more than the pixel to tell whether it is there.
    """
    sizes = matmul.facts.sizes
    inner = window.taps[window.taps.index(slide.outer[-1]) + 1 :] if slide.outer else window.taps
    across = [name for name in inner if sizes[name] != 1]
    width, length = window.length, slide.length
    if len(across) != 1 or not isinstance(width, int) or not isinstance(length, int):
        return None
    if not window.mask and not slide.planes:  # everything is read in place
        return None
    (name,), further = across, slide.pitch // width
    if slide.pitch != further * width or slide.pitch > length:
        return None
    for stmt in window.conditions:
        if isinstance(stmt, IndexValue):
            tap, row = stride(stmt.index, name), stride(stmt.index, slide.along)
            if not isinstance(tap, int) or row != tap * further:
                return None
    pixels = (rows - 1) * further + length // width
    outer = product(sizes[name] for name in slide.outer)
    whole = depth % length == 0
    lines = depth // length if whole else 1 + -(-depth // length)
    strip = Strip(name, pixels, width, min(lines, outer) if isinstance(outer, int) else lines, whole)
    return strip if strip.lines * strip.size <= rows * depth else None


def lines_of(matmul: Matmul, rows: int, most: int) -> int:
    """Steps of which a pass is a multiple if tiles of `rows` rows are copied in lines; else 0: a line of the
    window; of several planes one, which is read in place, unless it has more than `most`.
    """
    window = window_of(matmul)
    slide = slide_of(matmul, window, rows) if window is not None else None
    if window is None or slide is None or not isinstance(slide.length, int):
        return 0
    if strip_of(matmul, window, slide, rows, slide.length) is None:
        return 0
    plane = slide.length * matmul.facts.sizes[slide.outer[-1]] if slide.planes else slide.length
    return plane if isinstance(plane, int) and plane <= most else slide.length


def work_of(matmul: Matmul, points: str) -> str:
    """What so many results are worth to threads, as text. Numbers under a window are read many times."""
    left = 0 if window_of(matmul) else _FETCHED * matmul.a.memory.itemsize
    costs = f"{left}, {_FETCHED * matmul.b.memory.itemsize}"
    return f"matmul_work({points}, row_count, batch_count, depth_count, {costs})"


def heights(matmul: Matmul, rows: int, most: int, width: int, spans: bool) -> list[int]:
    """Rows that tiles of `width` vectors may have: up to `most`, in tiles of like height, or so many that a
    line of an image is whole tiles.

    Args:
        spans: whether a tile has all columns.
    """
    fewest = -(-rows // most)
    found = [-(-rows // tiles) for tiles in (fewest, fewest + 1)]
    line = _line(matmul) if window_of(matmul) is not None else 0
    least = _ENOUGH if spans else _HIDES
    found += [n for n in range(min(most, line), -(-least // width) - 1, -1) if line % n == 0][:1]
    return list(dict.fromkeys(found))


def packing_cycles(matmul: Matmul, rows: int, across: int, width: int, lanes: int) -> float:
    """Half cycles, for each step of the depth, of what a tile under a window takes beside multiplications: to
    pack its rows, where they are in no one line of the image, and to begin and end each block of `width`
    vectors of `across` columns. 0: there is no window.
    """
    window = window_of(matmul)
    if window is None:
        return 0.0
    run = matmul.extent((window.run,)) if window.run in matmul.depth else 1
    line, share = _line(matmul), 1.0
    depth = max(1, matmul.extent(matmul.depth))
    if slide_of(matmul, window, rows) is not None:
        tiles = line // gcd(line, rows)
        share = sum(tile * rows % line + rows > line for tile in range(tiles)) / tiles
    packed = rows * depth / run * (_BEGINNING + _COPYING * -(-run // lanes))
    return (share * packed + _TILE * -(-across // (width * lanes))) / depth


def one_block(matmul: Matmul, lanes: int) -> int:
    """Columns of a convolution if all of them are one block, whose vectors are whole: it is as if packed. A
    tile has no others, since behind the last step of the depth nothing may be read. 0: they are not.
    """
    alike = window_of(matmul) is not None and matmul.b.memory is matmul.dtype
    width = block_width(matmul) if alike else 0
    return width if width <= 4 * lanes and width % lanes == 0 else 0


def _line(matmul: Matmul) -> int:
    """Pixels of a line of the image."""
    moving = [name for name in matmul.a.axes if matmul.facts.sizes[name] != 1]
    return matmul.extent(moving[-1:])


def _grow(conditions: Sequence[Statement], axes: Sequence[str]) -> bool:
    """Whether conditions are tests of indices that grow with all axes: what holds at the first and at the
    last point then holds in between.
    """
    for stmt in conditions:
        if isinstance(stmt, IndexValue):
            steps = [stride(stmt.index, name) for name in axes]
            if not all(isinstance(step, int) and step >= 0 for step in steps):
                return False
        elif not isinstance(stmt, Constant) and not (isinstance(stmt, Compute) and stmt.op in _TESTS):
            return False
    return True
