"""Matmuls with few rows: the time is that of reading the weight, so that every multiprocessor must be
reading, with much on the way. The weight's columns take the longer side of the instruction, where it has no
padding. Of rows whose number is known only at run time, the most that there can be count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from polyfuse.ir.expr import Expr, loads
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.kit.contraction import Contraction, Operand, divided_depth
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, bounds, coefficient, free_axes, product
from polyfuse_triton.matmul.narrow import LONG_STEP, narrow_of
from polyfuse_triton.target import FEW_ROWS, STREAMING, Target
from polyfuse_triton.tiling.plan import power_of_two

_FEWEST_COLUMNS: Final = 256
_SMALL: Final = 1024
"""Columns up to which tiles are narrower."""
_SIDE, _DEPTH, _STAGES, _WARPS = 64, 128, 5, 4
_SHORTEST: Final = 2 * _DEPTH
"""Depth of a part."""
_MOST_PARTS: Final = 8
"""Parts that whoever reads a result adds up."""
_TYPES: Final = (DType.bf16, DType.f16)
_INSTRUCTION: Final = 16
"""Steps of the depth that an instruction takes."""
_NARROW_SIDE: Final = 128
"""Columns of a weight of halves in a tile where there are many rows, which each tile reads."""
_MANY: Final = 32
_FEW: Final = 16
"""Rows up to which whole bytes, and short groups, are multiplied by the instruction of one warp, which has
fewer columns and waits for nobody.
"""
_HALF_STAGES: Final = 3
"""Where a byte holds two numbers, whose factors take shared memory: more programs at a time gain more than
more stages.
"""
_NARROW_DEPTH: Final = 128
"""Numbers of a step."""
_LONG_GROUP: Final = 64
"""Bytes of a group from which on a step has more of them."""
_FEWEST_WIDE, _MOST_WIDE = 1.9, 2.7
"""Programs of wide tiles for each multiprocessor."""
_WIDE_OF_MANY: Final = 2.0
"""The most of many rows, whose sums are in registers."""
_FEWEST_STEPS: Final = 4
"""Of a part in which both numbers of a byte are multiplied at once."""
_RESIDENT: Final = 4
"""Programs of a multiprocessor, of which each has asked for little where weights are narrow."""
_PARTIAL: Final = 4
"""Bytes of a weight for each byte of the parts' sums that are stored and read again, at least."""
_FULLER: Final = 1.1
"""By how much multiprocessors are busier where one more part pays."""
_UNBOUNDED: Final = 1 << 62


def streaming_parts(matmul: Reduction, target: Target) -> int:
    """Into how many parts the depth is split; 0 where the library is as fast."""
    if target.arch >= STREAMING and matmul.kind == "dot" and len(matmul.axes) == 2 and _byte_axes(matmul):
        return _narrow_parts(matmul, target)
    if target.arch < STREAMING or matmul.kind != "dot" or len(matmul.axes) != 2 or len(matmul.raxes) != 1:
        return 0
    sizes = [axis_size(a) for a in matmul.axes]
    (rows, columns), depth = sorted(map(_most, sizes)), axis_size(matmul.raxes[0])
    if columns not in sizes or not isinstance(depth, int) or not all(map(_is_plain, matmul.values)):
        return 0
    outer = {axis_name(a) for a in matmul.axes}
    along = [outer.intersection(free_axes(value.index)) for value in matmul.values]
    if any(len(names) != 1 for names in along) or along[0] == along[1]:
        return 0
    inside = axis_name(matmul.raxes[0])
    if any(coefficient(value.index, inside) != 1 for value in matmul.values):
        return 0
    if not _is_worth_it(rows, columns, depth):
        return 0
    tiles, parts = -(-columns // side_of(columns)), 1
    while parts < _MOST_PARTS and 2 * tiles * parts <= target.multiprocessors:
        if depth % (2 * parts * _SHORTEST):
            break
        parts *= 2
    return parts


def _narrow_parts(matmul: Reduction, target: Target) -> int:
    """The same for a weight of bytes that is converted in the kernel: each part has some of the groups that
    are scaled together. 1 without groups, and where the parts' sums would take as long as the weight.
    """
    sizes = [axis_size(a) for a in (*matmul.axes, *matmul.raxes)]
    counts = [n for n in sizes if isinstance(n, int)]
    if len(counts) != len(sizes):
        return 1
    rows, columns = sorted(counts[:2])
    if rows > FEW_ROWS or columns < _FEWEST_COLUMNS:
        return 1
    inside, depth = _byte_axes(matmul), prod(counts[2:])
    half = len(inside) < len(matmul.raxes)
    group = counts[1 + max(k for k, a in enumerate(matmul.raxes, 1) if axis_name(a) in inside)]
    read = prod(n for a, n in zip(matmul.raxes, counts[2:], strict=True) if axis_name(a) in inside)

    def most(side: int, length: int, least: int, enough: float, crowd: float = 2 * _RESIDENT) -> int:
        """Parts of at least so many numbers, until there are enough programs for each multiprocessor;
        `length`: bytes of a step, 0 where each has one number; `crowd`: programs for each, at most.
        """
        tiles, parts = -(-columns // side), 1
        while parts < _MOST_PARTS and tiles * parts < _RESIDENT * target.multiprocessors:
            more = 2 * parts
            if tiles * more > crowd * target.multiprocessors or depth // more < least:
                break
            if not _is_divided(matmul, counts[2:], more, length):
                break
            # the sums are four bytes each, written and read
            if more * rows * 8 * _PARTIAL > read and tiles * parts >= enough * target.multiprocessors:
                break
            parts = more
        return parts

    transposed = _transposed(matmul)
    if transposed:
        return _transposed_parts(matmul, transposed, target)
    if not half:
        return most(_narrow_side(rows, half, group & -group < LONG_STEP), 0, _SHORTEST, 7 / 8)
    tile = _joined_tile(rows, group)
    wide = most(_WIDE.side, 2 * _WIDE.length, 2 * _FEWEST_STEPS * 2 * _WIDE.length, 2.0)
    if _is_wide(rows, columns, group, wide, target):
        return wide
    least, tiles = _FEWEST_STEPS * 2 * tile.length, -(-columns // tile.side)
    if rows <= _FEW or (group < _LONG_GROUP and rows <= _MANY):
        return most(tile.side, tile.length, least, 2.0)
    if rows <= _MANY or group < _LONG_GROUP:
        # all programs are there at once
        return most(tile.side, tile.length, least, 2.0, _MOST_WIDE)
    parts = most(tile.side, tile.length, least, 2.0)
    # each multiprocessor has one program at a time
    if _last_turn(tiles * (parts + 1), target) > _FULLER * _last_turn(tiles * parts, target):
        parts += _is_divided(matmul, counts[2:], parts + 1, tile.length)
    return parts


def _last_turn(programs: int, target: Target) -> float:
    """The share of multiprocessors' time in which some programs run, of which each has one at a time."""
    return programs / (-(-programs // target.multiprocessors) * target.multiprocessors)


def _is_divided(matmul: Reduction, sizes: Sequence[int], parts: int, length: int) -> bool:
    """Whether the axis that is divided into some parts leaves each enough of it: several groups, or, of each
    group, what an instruction takes. Where a byte holds two numbers, whole steps of so many bytes.
    """
    position, left = divided_depth(sizes, parts)
    if position < 0:
        return False
    name = axis_name(matmul.raxes[position])
    read = [load for load in loads(*matmul.values) if load.dtype.itemsize == 1 and not load.indirect]
    along = [any(coefficient(load.index, axis_name(a)) == 1 for load in read) for a in matmul.raxes]
    if name not in _byte_axes(matmul):
        return False
    if not length:
        if len(sizes) == 1:
            # no shorter steps than without parts
            return left % min(sizes[0] & -sizes[0], _NARROW_DEPTH) == 0
        return left >= (_INSTRUCTION if along[position] else 2)
    if along[position]:
        return left >= 2 * _INSTRUCTION
    group = next(n for n, inner in zip(sizes, along, strict=True) if inner)
    return left % max(1, length // group) == 0


def narrow_rows(matmul: Reduction) -> tuple[int, int]:
    """Up to how many rows a weight of bytes is converted in the kernel (`narrow_weight_rows`): as many
    as make reading it what takes time. Of types of other than 16 bits, and of groups that instructions
    do not take whole, the rows of one instruction, without groups.
    """
    usual = (16, 1) if len(matmul.raxes) == 1 else (0, 0)
    if any(value.dtype not in _TYPES for value in matmul.values):
        return usual
    read = [load for load in loads(*matmul.values) if load.dtype.itemsize == 1 and not load.indirect]
    inside = [
        axis_size(a) for a in matmul.raxes if any(coefficient(e.index, axis_name(a)) == 1 for e in read)
    ]
    if len(inside) != 1 or not isinstance(inside[0], int) or inside[0] % _INSTRUCTION:
        return usual
    return FEW_ROWS, 0


def _byte_axes(matmul: Reduction) -> set[str]:
    """The axes of the depth along which bytes are read."""
    found = {axis_name(a) for a in matmul.raxes}
    read = [load for load in loads(*matmul.values) if load.dtype.itemsize == 1 and not load.indirect]
    return found & {name for load in read for name in free_axes(load.index)}


def _most(size: IndexLike) -> int:
    """The most that a size can be."""
    most = bounds(size)[1]
    return _UNBOUNDED if most is None else most


def _narrow_side(rows: int, half: bool, short: bool) -> int:
    """Columns of a narrow weight in a tile; `half`: whether a byte holds two numbers; `short`: whether groups
    are less than a step.
    """
    if rows <= _FEW and (short or not half):
        return _SIDE // 2
    return _NARROW_SIDE if half and rows > _MANY else _SIDE


@dataclass(frozen=True)
class _JoinedTile:
    """How both numbers of a byte are multiplied at once, as measured.

    Attributes:
        side: columns of the weight.
        length: bytes of a step.
        warps: two, or the four of the instruction that waits for all of them.
        stages: of steps.
    """

    side: int
    length: int
    warps: int
    stages: int


def _joined_tile(rows: int, group: int) -> _JoinedTile:
    """The tile for so many rows and bytes of a group."""
    length = _joined_length(group)
    if rows <= _FEW:
        return _JoinedTile(_SIDE // 2, length, 2, 3 if group >= _LONG_GROUP else 4)
    if rows > _MANY:
        return _JoinedTile(_SIDE, length, 4, 3)
    # of long steps, fewer at a time leave room for more programs
    return _JoinedTile(_SIDE, length, 4, 2 if group >= _LONG_GROUP else 4)


_WIDE: Final = _JoinedTile(_NARROW_SIDE, _LONG_GROUP, _WARPS, 3)
"""The tile of which each multiprocessor has two or three at a time, with more than 16 rows."""


_TRANSPOSED: Final = _JoinedTile(_SIDE, 2 * _LONG_GROUP, _WARPS, 3)
"""The tile of whole bytes whose rows are transposed."""


def _transposed(matmul: Reduction) -> int:
    """How many rows lie side by side in the operand that is read as it is; 0 where the depth does."""
    if len(matmul.raxes) > 1:
        return 0
    steps = [
        coefficient(value.index, axis_name(matmul.raxes[0]))
        for value in matmul.values
        if value.op == "load" and not value.args
    ]
    return steps[0] if len(steps) == 1 and isinstance(steps[0], int) and steps[0] > 1 else 0


def _transposed_parts(matmul: Reduction, rows: int, target: Target) -> int:
    """Parts of whole bytes whose rows are transposed, so many: as many as all programs are there at once."""
    columns, depth = max(map(_most, map(axis_size, matmul.axes))), _most(axis_size(matmul.raxes[0]))
    tile, tiles = _TRANSPOSED, -(-columns // _TRANSPOSED.side)
    shared = tile.stages * tile.length * (tile.side + 2 * rows)
    parts = min(
        _MOST_PARTS, target.shared_bytes // shared * target.multiprocessors // tiles, depth // _SHORTEST
    )
    while parts > 1 and divided_depth([depth], parts)[1] % min(depth & -depth, tile.length):
        parts -= 1
    return max(1, parts)


def _is_wide(rows: int, columns: int, group: int, parts: int, target: Target) -> bool:
    """Whether `_WIDE` is faster: where its programs are as many as multiprocessors have at a time, and parts
    are equal, as a power of two of them mostly is.
    """
    programs = -(-columns // _WIDE.side) * parts / target.multiprocessors
    most = _MOST_WIDE if rows <= _MANY else _WIDE_OF_MANY
    if parts & (parts - 1):
        return False
    return rows > _FEW and group == _LONG_GROUP and _FEWEST_WIDE <= programs <= most


def wide_tile(found: Contraction, target: Target) -> tuple[int, int, int, int] | None:
    """Columns of the weight and bytes of a tile, warps and stages, where a byte's numbers are multiplied at
    once in wide tiles, or in more stages, since all programs are there at once; None for others.
    """
    narrow = narrow_of(found)
    if narrow is None or not narrow.joined:
        return None
    columns, rows, parts = (_extent(axes) for axes in (found.rows, found.columns, found.batch))
    group, tile = narrow.sizes[-1], _joined_tile(rows, narrow.sizes[-1])
    if _is_wide(rows, columns, group, parts, target):
        tile = _WIDE
    elif _FEW < rows <= _MANY and -(-columns // tile.side) * parts <= _MOST_WIDE * target.multiprocessors:
        tile = replace(tile, stages=max(tile.stages, _HALF_STAGES))
    else:
        return None
    return tile.side, min(tile.length, narrow.longest), tile.warps, tile.stages


def _joined_length(group: int) -> int:
    """Bytes of a step. What a whole group has for itself is read by words of two."""
    return 2 * _LONG_GROUP if group >= _LONG_GROUP else _LONG_GROUP


def side_of(columns: int) -> int:
    """Columns of a tile."""
    return _SIDE if columns > _SMALL else _SIDE // 2


def _is_worth_it(few: int, many: int, depth: int) -> bool:
    return 2 <= few <= FEW_ROWS and many >= _FEWEST_COLUMNS and depth % _DEPTH == 0 and depth >= _SHORTEST


def _is_plain(value: Expr) -> bool:
    return value.op == "load" and not value.args and value.dtype in _TYPES


def long_side_first(found: Contraction) -> Contraction:
    """A matmul with its operands exchanged, where few rows of one meet many columns of the other."""
    if _extent(found.rows) >= _extent(found.columns) or not streams(found):
        return found
    return exchanged(found)


def exchanged(found: Contraction) -> Contraction:
    """A matmul with its operands exchanged."""
    return replace(found, rows=found.columns, columns=found.rows, left=found.right, right=found.left)


def streams(found: Contraction) -> bool:
    """Whether a matmul is one of those here: each operand contiguous along the depth, and of a known size but
    for the few rows.
    """
    narrow = narrow_of(found)
    if narrow is not None:
        few, many = (_extent(axes) for axes in (found.rows, found.columns)[:: -1 if narrow.is_left else 1])
        return few <= FEW_ROWS and many >= _FEWEST_COLUMNS
    if len(found.depth) != 1 or not isinstance(axis_size(found.depth[0]), int):
        return False
    if not all(_is_streamed(o, axis_name(found.depth[0])) for o in (found.left, found.right)):
        return False
    (few, _), (many, longer) = sorted(
        ((_extent(axes), n) for n, axes in enumerate((found.rows, found.columns)))
    )
    if any(not isinstance(axis_size(a), int) for a in (found.rows, found.columns)[longer]):
        return False
    return _is_worth_it(few, many, found.shape[-1])


def is_grouped(found: Contraction) -> bool:
    """Whether a matmul becomes a part of a launch of several: there is shared memory for tiles of four."""
    return streams(found) and (narrow_of(found) is None or _few(found) <= _MANY)


def _few(found: Contraction) -> int:
    return min(_extent(found.rows), _extent(found.columns))


def _extent(axes: tuple[Index, ...]) -> int:
    """The most points that some axes span together."""
    return _most(product(axis_size(a) for a in axes))


def _is_streamed(operand: Operand, depth: str) -> bool:
    load = operand.plain
    return load is not None and operand.dtype in _TYPES and coefficient(load.index, depth) == 1


def tile_of(found: Contraction) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps and stages that stream a matmul with its long side first."""
    narrow = narrow_of(found)
    if narrow is not None:
        few = power_of_two(_extent(found.columns))
        if narrow.transposed:
            tile = _TRANSPOSED
            return tile.side, max(16, few), min(narrow.longest, tile.length), tile.warps, tile.stages
        if narrow.joined:
            tile = _joined_tile(few, narrow.sizes[-1])
            return tile.side, max(8, few), min(narrow.longest, tile.length), tile.warps, tile.stages
        few = max(16, few)
        length = min(narrow.longest, _NARROW_DEPTH // narrow.numbers)
        side = _narrow_side(few, bool(narrow.half), length * narrow.numbers < LONG_STEP)
        stages = _HALF_STAGES if narrow.half else _STAGES if side == _SIDE else _STAGES - 1
        return side, few, length, side // 16, stages
    stages = min(_STAGES, max(2, found.shape[-1] // _DEPTH))
    side = max(16, power_of_two(_extent(found.columns)))
    return side_of(_extent(found.rows)), side, _DEPTH, _WARPS, stages
