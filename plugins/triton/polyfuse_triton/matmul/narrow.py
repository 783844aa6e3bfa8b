"""Matmuls of which one operand is made of bytes along the depth: a weight of 8 or 4 bits that is converted,
and scaled in groups. A program walks the depth in steps that lie in one group, so that what a group has for
itself is a column, not a tile; and it takes both numbers out of a byte that it has read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Statement,
    indices,
    with_index,
)
from polyfuse.ir.types import DType
from polyfuse.kit.contraction import Contraction, Operand
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    bounds,
    coefficient,
    free_axes,
    substitute,
)
from polyfuse_triton.tiling.plan import power_of_two

HALF, STEP, TURN, INSIDE, BOTH, GROUP = "half", "step", "turn", "k", "w", "u"
"""Axes in place of those of the depth: of the numbers in a byte, of a program's rounds, of steps in a round,
of bytes in a step, of the numbers in these, and of the groups that they are of.
"""
AHEAD = "ahead"
"""In place of `STEP`: the round after this one."""

_TYPES = (DType.bf16, DType.f16)
LONG_STEP = 128
"""Numbers of a step from which on its sums, rather than its numbers, are multiplied with scales, however many
rows there are.
"""
_ROUND = 64
"""Bytes of a round."""
WORDS = 64
"""Bytes of which four threads read sixteen each."""
_SHORTEST = 16
"""Steps of the depth that a matrix instruction takes."""


@dataclass(frozen=True)
class Narrow:
    """How the depth of such a matmul is walked.

    Attributes:
        is_left: whether the left operand is the one of bytes.
        depth: names of the axes along which bytes follow each other, outermost first.
        sizes: of these.
        half: name of the axis of the two numbers in a byte; empty where each is a number.
        together: whether the other operand has what belongs to a byte side by side.
        joined: whether both numbers of a byte are multiplied in one instruction, in the order in which the
            other operand has them.
        other: the load of the other operand; masked where something is skipped.
        skipped: the first steps of the outermost axis, which count for nothing; None where all count.
        transposed: how many rows of the other operand lie side by side, where the bytes are only converted;
            0 for others.
    """

    is_left: bool
    depth: tuple[str, ...]
    sizes: tuple[int, ...]
    half: str
    together: bool
    other: Load
    joined: bool = False
    skipped: IndexValue | None = None
    transposed: int = 0

    @property
    def numbers(self) -> int:
        """In a byte."""
        return 2 if self.half else 1

    @property
    def bytes(self) -> int:
        """Along the depth."""
        return prod(self.sizes)

    @property
    def longest(self) -> int:
        """The longest power of two of bytes that a step may have: of one group, or of several whole ones
        where both numbers of a byte are multiplied together.
        """
        *outer, size = self.sizes
        inside = _lowest_bit(size if outer else gcd(size, self.most_skipped))
        if not self.joined or not outer or inside != size:
            return inside
        return inside * _lowest_bit(outer[-1] if len(outer) > 1 else gcd(outer[-1], self.most_skipped))

    @property
    def most_skipped(self) -> int:
        """Steps of the outermost axis."""
        return 0 if self.skipped is None else bounds(self.skipped.index)[1] or 0

    def groups(self, length: int) -> int:
        """Groups that a step of so many bytes has a part of."""
        return max(1, length // self.sizes[-1])

    def turns(self, length: int) -> int:
        """Steps of so many bytes in a round of the loop, whose own instructions short steps would not pay."""
        if self.joined:
            return 1
        turns = max(1, _ROUND // length)
        while gcd(self.bytes, self.most_skipped * self.inside) // length % turns:
            turns //= 2
        return turns

    @property
    def inside(self) -> int:
        """Bytes in a step of the outermost axis."""
        return prod(self.sizes[1:])


def narrow_of(found: Contraction) -> Narrow | None:
    """How a matmul's depth is walked, if one operand is made of bytes along it and the other is there."""
    found_reads = map(read_of, (found.left, found.right))
    reads = [load if load is not None and not load.indirect else None for load in found_reads]
    if sum(load is not None for load in reads) != 1 or found.left.dtype not in _TYPES:
        return None
    is_left = reads[0] is None
    other = reads[1 if is_left else 0]
    made = found.left if is_left else found.right
    assert other is not None
    read = _byte_load(made, found.depth)
    sizes = {axis_name(a): axis_size(a) for a in found.depth}
    if read is None or not all(isinstance(n, int) for n in sizes.values()):
        return None
    along = {name: coefficient(read, name) for name in sizes}
    half = [name for name, step in along.items() if step == 0]
    depth = sorted((n for n in sizes if n not in half), key=lambda n: -_number(along[n]))
    if len(half) > 1 or any(sizes[n] != 2 for n in half) or not depth:
        return None
    # a part may have some bytes of each group
    if along[depth[-1]] != 1:
        return None
    skipped = _skipped(found.right if is_left else found.left, other, depth[0])
    if other.mask is not None and skipped is None:
        return None
    steps = {name: coefficient(other.index, name) for name in sizes}
    if not all(isinstance(step, int) for step in steps.values()):
        return None
    together = bool(half) and steps[half[0]] == 1 and steps[depth[-1]] == 2
    lengths = tuple(_number(sizes[n]) for n in depth)
    joined = together and is_left and all(_is_of_group(stmt, read, depth[-1]) for stmt in made.body)
    transposed = 0
    if is_left and len(depth) == 1 and _is_converted(made):
        transposed = _transposed(other, found.columns, _number(steps[depth[0]]))
    of_byte = half[0] if half else ""
    narrow = Narrow(is_left, tuple(depth), lengths, of_byte, together, other, joined, skipped, transposed)
    return narrow if narrow.longest >= _SHORTEST else None


def read_of(operand: Operand) -> Load | None:
    """The load that is an operand, zero where it is masked; None where there is more to it."""
    defined = {stmt.targets[0]: stmt for stmt in operand.body}
    stmt = defined[operand.value]
    if not isinstance(stmt, Load) or stmt.mask is None:
        return stmt if isinstance(stmt, Load) else None
    other = defined[stmt.other] if stmt.other else None
    return stmt if isinstance(other, Constant) and other.value == 0 else None


def _skipped(operand: Operand, load: Load, outermost: str) -> IndexValue | None:
    """What the number of a step of the outermost axis is compared with where an operand is masked; None where
    the mask is something else, or there is none.
    """
    defined = {stmt.targets[0]: stmt for stmt in operand.body}
    test = defined[load.mask] if load.mask is not None else None
    if not isinstance(test, Compute) or test.op != "ge":
        return None
    step, least = (defined[name] for name in test.args)
    if not isinstance(step, IndexValue) or not isinstance(least, IndexValue):
        return None
    is_outermost = coefficient(step.index, outermost) == 1 and set(free_axes(step.index)) == {outermost}
    return least if is_outermost and outermost not in free_axes(least.index) else None


def _is_converted(made: Operand) -> bool:
    """Whether an operand is signed bytes that are only converted."""
    load, *casts = made.body
    if not isinstance(load, Load) or load.dtype is not DType.i8 or load.mask is not None:
        return False
    return made.dtype is DType.bf16 and all(isinstance(c, Cast) and not c.bitwise for c in casts)


def _transposed(other: Load, own: Sequence[Index], step: int) -> int:
    """How many rows lie side by side: as many as make whole tiles."""
    if len(own) != 1 or coefficient(other.index, axis_name(own[0])) != 1:
        return 0
    rows = axis_size(own[0])
    return step if isinstance(rows, int) and step >= rows and step % power_of_two(rows) == 0 else 0


def _lowest_bit(number: int) -> int:
    """The largest power of two that divides a number."""
    return number & -number


def _is_of_group(stmt: Statement, read: IndexLike, inner: str) -> bool:
    """Whether a statement asks for nothing but the operand's bytes, or what a whole group has for itself."""
    if isinstance(stmt, Load) and stmt.index == read:
        return True
    return all(inner not in free_axes(index) for index in indices(stmt))


def _number(value: IndexLike | None) -> int:
    return value if isinstance(value, int) else 0


def _byte_load(made: Operand, depth: Sequence[Index]) -> IndexLike | None:
    """The index at which an operand reads bytes along the depth; None where it does otherwise."""
    names = {axis_name(a) for a in depth}
    found: list[IndexLike] = []
    for stmt in made.body:
        if not isinstance(stmt, Load):
            continue
        if stmt.indirect:
            return None
        if stmt.dtype.itemsize == 1 and stmt.dtype is not DType.bool and names & set(free_axes(stmt.index)):
            found.append(stmt.index)
    return found[0] if found and all(index == found[0] for index in found) else None


def stepped(kernel: Kernel, narrow: Narrow, length: int, turns: int) -> Kernel:
    """The kernel with the depth's axes in terms of `STEP`, `TURN`, `INSIDE` and `HALF`; a step has `length`
    bytes, and a round so many steps.
    """
    count = narrow.groups(length)
    step: IndexLike = axis(STEP, narrow.bytes // (length * turns)) * turns
    if turns > 1:
        step = step + axis(TURN, turns)
    if count == 1:
        mapping = _positions(narrow, step, narrow.sizes[-1] // length)
        mapping[narrow.depth[-1]] = mapping[narrow.depth[-1]] * length + axis(INSIDE, length)
        own = mapping
    else:
        # of several groups, what each has for itself is a column of its own
        inside, size = axis(INSIDE, length), narrow.sizes[-1]
        mapping = _positions(narrow, step * count + inside // size, 1)
        mapping[narrow.depth[-1]] = inside % size
        own = _positions(narrow, step * count + axis(GROUP, count), 1)
    if narrow.half:
        mapping[narrow.half] = own[narrow.half] = axis(HALF, 2)

    def moved(stmt: Statement) -> Statement:
        is_own = all(narrow.depth[-1] not in free_axes(index) for index in indices(stmt))
        return with_index(stmt, lambda index: substitute(index, own if is_own else mapping))

    sections = tuple(Section(s.looped, tuple(map(moved, s.body))) for s in kernel.sections)
    return replace(kernel, sections=sections)


def _positions(narrow: Narrow, rest: IndexLike, inner: int) -> dict[str, IndexLike]:
    """The axes of the depth by one number that counts steps, or groups: so many for each of the innermost."""
    found: dict[str, IndexLike] = {}
    for name, size in zip(narrow.depth[::-1], (inner, *narrow.sizes[-2::-1]), strict=True):
        found[name] = rest % size
        rest = rest // size
    return found


def factored(made: Operand, is_factor: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """The value that is left of an operand without its last factors, and these: what is the same in all of a
    step (`is_factor`, of a value's name) is multiplied with sums, not with each number.
    """
    defined = {stmt.targets[0]: stmt for stmt in made.body}
    name, factors = made.value, []
    while True:
        stmt = defined[name]
        if isinstance(stmt, Cast) and not stmt.bitwise and stmt.dtype.is_float:
            if stmt.arg not in defined or not _is_float(defined[stmt.arg]):
                break
            name = stmt.arg
            continue
        if not isinstance(stmt, Compute) or stmt.op != "mul":
            break
        found = [arg for arg in stmt.args if is_factor(arg)]
        if len(found) != 1:
            break
        factors.append(found[0])
        name = stmt.args[1 - stmt.args.index(found[0])]
    return (name, tuple(factors)) if factors else (made.value, ())


def _is_float(stmt: Statement) -> bool:
    return isinstance(stmt, (Cast, Compute, Load)) and stmt.dtype.is_float
