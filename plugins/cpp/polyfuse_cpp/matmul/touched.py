"""What finishing a tile reads and writes in each row, beside the sums: asked for before the tile is added up.

Rows of a result lie far apart, and a tile touches a line or two of each, which the machine does not see
coming. Adding up hides the time that they take to arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.statements import Load, Store
from polyfuse.kit import stride
from polyfuse.symbolic import IndexLike
from polyfuse_cpp.matmul.problem import Matmul


@dataclass(frozen=True)
class Touched:
    """Columns of a buffer that lie side by side, and rows that are one distance apart.

    Attributes:
        buffer: the argument of the kernel.
        index: in elements.
        pitch: elements from one row to the next.
    """

    buffer: str
    index: IndexLike
    pitch: int


def touched_by(matmul: Matmul) -> tuple[Touched, ...]:
    """What the epilogue touches."""
    *outer, lane = matmul.b.axes
    if any(matmul.facts.sizes[name] != 1 for name in outer):
        return ()
    found = []
    for stmt in matmul.epilogue:
        if not isinstance(stmt, (Load, Store)) or stmt.indirect or stmt.buffer not in matmul.facts.memory:
            continue
        if stride(stmt.index, lane) != 1:
            continue
        pitch = common_pitch(stmt.index, matmul.a.axes, matmul)
        if pitch:
            found.append(Touched(stmt.buffer, stmt.index, pitch))
    return tuple(dict.fromkeys(found))


def common_pitch(index: IndexLike, axes: tuple[str, ...], matmul: Matmul) -> int:
    """Elements from one row to the next, where that is one number for all rows of `axes`; else 0."""
    sizes, pitch = matmul.facts.sizes, 0
    extent: IndexLike = 1
    for name in reversed(axes):
        if sizes[name] == 1:
            continue
        step = stride(index, name)
        pitch = pitch or (step if isinstance(step, int) else 0)
        if not pitch or step != pitch * extent:
            return 0
        extent = extent * sizes[name]
    return pitch
