"""A copy of an image with zeros beyond its border, in which all pixels of a tile lie one distance apart.

A matrix register is loaded from rows that are one distance apart. Pixels of neighbouring lines are so if
lines of the result are as long as those of the copy: some rows of a tile, those behind the end of a line, are
then computed for nothing (two in each line of a window of 3x3). With a step of several lines between windows,
lines that follow each other for a tap are copied one after the other, in as many planes as there are such
steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from polyfuse.ir.statements import Compute, Constant, IndexValue, Load, Statement
from polyfuse.ir.types import DType
from polyfuse.kit import backward_slice, stride
from polyfuse.symbolic import IndexLike, free_axes, product
from polyfuse_cpp.isa import steps_of
from polyfuse_cpp.matmul.problem import Matmul

_TESTS = ("ge", "lt", "le", "gt", "bitwise_and")

_MOST_AXES = 2
"""Axes of windows that are copied so: of lines and of images."""

SMALL_WEIGHT = 1 << 15
"""Elements of a weight up to which each call packs it, where it is not packed before."""

_MOST_STEP = 8
"""Elements of the image, in pixels, from window to window and from tap to tap."""


@dataclass(frozen=True)
class Slope:
    """One axis of the windows: the pixel that a result reads with a tap is ``step * result + apart * tap``.

    Attributes:
        row: the axis of results; empty where there is one.
        tap: the axis of taps; empty where there is one.
        taps: how many there are.
        step, apart: pixels of the copy, which have no common divisor.
        row_of, tap_of: multiplied with the number of a pixel, a result and a tap that read it, which may lie
            outside their ranges.
    """

    row: str
    tap: str
    taps: int
    step: int
    apart: int
    row_of: int
    tap_of: int

    @property
    def phases(self) -> tuple[int, ...]:
        """The remainders of the pixels that are read, divided by the step."""
        return tuple(sorted({tap * self.apart % self.step for tap in range(self.taps)}))

    def further(self, phase: int) -> int:
        """How many results further the last tap of a phase reads."""
        found = [tap * self.apart // self.step for tap in range(self.taps)]
        return max(n for tap, n in enumerate(found) if tap * self.apart % self.step == phase)


@dataclass(frozen=True)
class Padded:
    """Operand A as such a copy.

    Attributes:
        load: of an element of the image.
        conditions: the statements that tell whether that is there.
        run: the axis of the depth along which channels lie side by side.
        channels: how many there are.
        width: elements of a pixel of the copy: at least as many.
        outer: axes of images.
        down, along: lines of an image, and pixels of a line.
        pitch: elements of the image from one pixel of the copy to the next.
        own_weight: whether the kernel packs the weight itself.
    """

    load: Load
    conditions: tuple[Statement, ...]
    run: str
    channels: int
    width: int
    outer: tuple[str, ...]
    down: Slope
    along: Slope
    pitch: int
    own_weight: bool

    @property
    def mask(self) -> str:
        """The name of the condition; empty where all is there."""
        return self.load.mask or ""

    @property
    def chunk(self) -> int:
        """Steps of the depth that lie side by side in the copy."""
        return self.width * (self.along.taps if self.along.apart == 1 else 1)

    @property
    def depth(self) -> int:
        """All steps, with those of channels that are not there."""
        return self.width * self.along.taps * self.down.taps

    @property
    def steps(self) -> int:
        """Steps of the depth that one matrix register holds."""
        return steps_in(self.chunk)


def steps_in(chunk: int) -> int:
    """Steps of a chunk of the depth that one matrix register holds: all of a short one."""
    return chunk if chunk <= steps_of(0) else steps_of(chunk)


def padded_width(channels: int, taps: int) -> int:
    """Elements of a pixel whose `taps` neighbours fill matrix registers, with as few of these as possible."""
    fits = [n for n in range(channels + channels % 2, channels + steps_of(0), 2) if not _left(n * taps)]
    return min(fits, key=lambda n: (n * taps // steps_in(n * taps), n))


def _left(chunk: int) -> int:
    return chunk % steps_in(chunk)


def padded_of(matmul: Matmul) -> Padded | None:
    """Operand A as a copy whose weight is packed in pairs, or small; None where it is no window of bf16."""
    side, facts, right = matmul.a, matmul.facts, matmul.b
    load = side.operand.body[-1]
    if not isinstance(load, Load) or load.indirect or load.target != side.operand.value:
        return None
    if facts.memory[load.buffer] is not DType.bf16 or right.memory is not DType.bf16 or right.index is None:
        return None
    other = facts.definition(load.other or "") if load.mask is not None else None
    if load.mask is not None and not (isinstance(other, Constant) and other.value == 0):
        return None
    conditions = backward_slice(side.operand.body[:-1], [load.mask]) if load.mask is not None else ()
    single = (*matmul.batch, *right.axes[:-1])
    moving = [a for a in matmul.depth if facts.sizes[a] != 1]
    if any(facts.sizes[a] != 1 for a in single):
        return None
    run = next((a for a in moving if stride(load.index, a) == 1 and a not in _read(conditions)), "")
    taps = [a for a in matmul.depth if a != run]
    rows = list(side.axes)
    if not run or not 1 <= len(taps) <= min(_MOST_AXES, len(rows)) or all(facts.sizes[a] == 1 for a in taps):
        return None
    slopes = [_slope(matmul, load.index, *pair) for pair in zip(rows[-len(taps) :], taps, strict=True)]
    none = Slope("", "", 1, 1, 0, 1, 0)
    down, along = slopes if len(slopes) > 1 else [none, *slopes]
    if down is None or along is None or not _alike(conditions, (down, along)):
        return None
    channels, pitch = facts.sizes[run], _pitch(load.index, along)
    if not isinstance(channels, int) or pitch < 1:
        return None
    taps_together = along.taps if along.apart == 1 else 1
    if right.paired:
        # in the order of the copy, and nothing may be read behind the last step
        order = [a for a in (down.tap, along.tap, run) if a]
        whole = not channels % 2 and not _left(channels * taps_together)
        if not whole or [a for a in matmul.depth if facts.sizes[a] != 1] != [a for a in order if a in moving]:
            return None
        width = channels
    else:
        weight = product(facts.sizes[a] for a in (*right.axes, *matmul.depth))
        if not isinstance(weight, int) or weight > SMALL_WEIGHT or right.packed_width:
            return None
        width = padded_width(channels, taps_together)
    outer = tuple(rows[: -len(taps)])
    return Padded(load, conditions, run, channels, width, outer, down, along, pitch, not right.paired)


def _read(conditions: tuple[Statement, ...]) -> set[str]:
    return {name for s in conditions if isinstance(s, IndexValue) for name in free_axes(s.index)}


def _slope(matmul: Matmul, index: IndexLike, row: str, tap: str) -> Slope | None:
    """An axis of the windows, by where elements are in memory."""
    sizes = matmul.facts.sizes
    taps = sizes[tap]
    if not isinstance(taps, int):
        return None
    if taps == 1:
        return Slope(row, "", 1, 1, 0, 1, 0)
    step, apart = stride(index, row), stride(index, tap)
    if apart is None or step is None:
        return None
    if sizes[row] == 1:
        return Slope("", tap, taps, 1, 1, 0, 1)
    found = pixels_of(step, apart)
    return Slope(row, tap, taps, *found, *_bezout(*found)) if found is not None else None


def pixels_of(step: IndexLike, apart: IndexLike) -> tuple[int, int] | None:
    """Elements of memory from window to window and from tap to tap, in pixels of a copy; None for pixels that
    lie too far apart for one.
    """
    steps = range(1, _MOST_STEP + 1)
    pairs = ((n, m) for n in steps for m in steps if gcd(n, m) == 1)
    return next(((n, m) for n, m in pairs if step != 0 and step * m == apart * n), None)


def _bezout(n: int, m: int) -> tuple[int, int]:
    """Two numbers by which two others, multiplied and added, are one."""
    return next((a, (1 - a * n) // m) for a in range(m + 1) if (1 - a * n) % m == 0)


def _pitch(index: IndexLike, along: Slope) -> int:
    """Elements from one pixel of a line to the next; 0 where nobody knows."""
    row, tap = (stride(index, name) if name else 0 for name in (along.row, along.tap))
    if along.taps == 1:
        return row if isinstance(row, int) else 0
    if isinstance(tap, int) and tap % along.apart == 0:
        return tap // along.apart
    return 0


def _alike(conditions: tuple[Statement, ...], slopes: tuple[Slope, Slope]) -> bool:
    """Whether conditions are tests of pixels of the copy, whichever result and tap read them, that hold in
    one range of each line.
    """
    axes = {name for slope in slopes for name in (slope.row, slope.tap) if name}
    for stmt in conditions:
        if isinstance(stmt, IndexValue):
            for slope in slopes:
                row, tap = (stride(stmt.index, name) if name else 0 for name in (slope.row, slope.tap))
                if row is None or tap is None:
                    return False
                if slope.row and slope.tap and row * slope.apart != tap * slope.step:
                    return False
            if not axes.issuperset(free_axes(stmt.index)):
                return False
        elif not isinstance(stmt, Constant) and not (isinstance(stmt, Compute) and stmt.op in _TESTS):
            return False
    return True
