"""Matmuls of which one operand is made of bytes along the depth: a weight of 8 or 4 bits that is converted,
and scaled in groups. A program walks the depth in steps that lie in one group, so that what a group has for
itself is a column, not a tile; and it takes both numbers out of a byte that it has read once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Cast, Compute, Load, Statement, with_index
from polyfuse.ir.types import DType
from polyfuse.kit.contraction import Contraction, Operand
from polyfuse.kit.spans import Span, type_span
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    free_axes,
    substitute,
)
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value

HALF, STEP, TURN, INSIDE, BOTH = "half", "step", "turn", "k", "w"
"""Axes in place of those of the depth: of the numbers in a byte, of a program's rounds, of steps in a round,
of bytes in a step, and of the numbers in these.
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
_SHORTEST = 16
"""Steps of the depth that a matrix instruction takes."""
_FEW_VALUES = 128
"""Integers behind a power of two that are numbers of bf16, too."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    op: getattr(operator, op) for op in ("eq", "ne", "lt", "le", "gt", "ge")
}


@dataclass(frozen=True)
class Narrow:
    """How the depth of such a matmul is walked.

    Attributes:
        is_left: whether the left operand is the one of bytes.
        depth: names of the axes along which bytes follow each other, outermost first.
        sizes: of these.
        half: name of the axis of the two numbers in a byte; empty where each is a number.
        together: whether the other operand has what belongs to a byte side by side.
    """

    is_left: bool
    depth: tuple[str, ...]
    sizes: tuple[int, ...]
    half: str
    together: bool

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
        """The longest power of two of bytes that lie in one group."""
        return self.sizes[-1] & -self.sizes[-1]

    def turns(self, length: int) -> int:
        """Steps of so many bytes in a round of the loop, whose own instructions short steps would not pay."""
        turns = max(1, _ROUND // length)
        while self.bytes // length % turns:
            turns //= 2
        return turns


def narrow_of(found: Contraction) -> Narrow | None:
    """How a matmul's depth is walked, if one operand is made of bytes along it and the other is there."""
    plain = [operand.plain for operand in (found.left, found.right)]
    if sum(load is not None for load in plain) != 1 or found.left.dtype not in _TYPES:
        return None
    is_left = plain[0] is None
    other = plain[1 if is_left else 0]
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
    steps = {name: coefficient(other.index, name) for name in sizes}
    if not all(isinstance(step, int) for step in steps.values()):
        return None
    together = bool(half) and steps[half[0]] == 1 and steps[depth[-1]] == 2
    lengths = tuple(_number(sizes[n]) for n in depth)
    narrow = Narrow(is_left, tuple(depth), lengths, half[0] if half else "", together)
    return narrow if narrow.longest >= _SHORTEST else None


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
    inner = narrow.sizes[-1] // length
    rest: IndexLike = axis(STEP, narrow.bytes // (length * turns)) * turns
    if turns > 1:
        rest = rest + axis(TURN, turns)
    mapping: dict[str, IndexLike] = {}
    for name, size in zip(narrow.depth[::-1], (inner, *narrow.sizes[-2::-1]), strict=True):
        mapping[name] = rest % size
        rest = rest // size
    mapping[narrow.depth[-1]] = mapping[narrow.depth[-1]] * length + axis(INSIDE, length)
    if narrow.half:
        mapping[narrow.half] = axis(HALF, 2)

    def moved(stmt: Statement) -> Statement:
        return with_index(stmt, lambda index: substitute(index, mapping))

    sections = tuple(Section(s.looped, tuple(map(moved, s.body))) for s in kernel.sections)
    return replace(kernel, sections=sections)


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


class NarrowScope(MemoryScope):
    """Where the operand is computed: what is known of one of a byte's numbers is not asked on the device, and
    bytes become numbers of 16 bits by their bits: a conversion takes eight times as long as an addition.
    """

    wanted: DType = DType.bf16
    """The type of what is multiplied."""

    def at(
        self, body: Sequence[Statement], position: Mapping[str, IndexLike], before: Mapping[str, Value]
    ) -> None:
        """Begin with one of the numbers in each byte (`HALF`) of a step (`TURN`). `before`: values that are
        known already.
        """
        self.values = dict(before)
        self._known = {
            stmt.targets[0]: with_index(stmt, lambda index: substitute(index, position)) for stmt in body
        }

    def value(self, name: str) -> Value:
        found = self.values.get(name)
        if found is None:
            found = self.values[name] = self.evaluate(self._known[name])
        return found

    def evaluate(self, stmt: Statement) -> Value:
        if isinstance(stmt, Compute) and stmt.op == "where":
            chosen = self.value(stmt.args[0]).constant
            if chosen is not None:
                return self.value(stmt.args[1 if chosen else 2])
        elif isinstance(stmt, Compute) and stmt.op in _COMPARISONS:
            left, right = (self.value(name).constant for name in stmt.args)
            if left is not None and right is not None:
                return Value("", DType.bool, constant=_COMPARISONS[stmt.op](left, right))
        elif isinstance(stmt, Load) and stmt.mask is not None and stmt.other is not None:
            reads = self.value(stmt.mask).constant
            if reads is not None:
                return (
                    self.evaluate(replace(stmt, mask=None, other=None)) if reads else self.value(stmt.other)
                )
        found = super().evaluate(stmt)
        if found.dims and found.span is None and found.dtype in (DType.u8, DType.i8):
            return replace(found, span=self._span(stmt, found.dtype))
        return found

    def _span(self, stmt: Statement, dtype: DType) -> Span | None:
        """Bounds of a byte, or of a part of one."""
        whole = type_span(dtype)
        if isinstance(stmt, Compute) and stmt.op in ("bitwise_and", "shift_right"):
            left, right = (self.value(name) for name in stmt.args)
            if stmt.op == "bitwise_and":
                limits = [
                    v.constant for v in (left, right) if isinstance(v.constant, int) and v.constant >= 0
                ]
                return (0, min(limits)) if limits else whole
            span = left.span or whole
            if isinstance(right.constant, int) and 0 <= right.constant < 8 and span is not None:
                return int(span[0]) >> right.constant, int(span[1]) >> right.constant
        return whole

    def _cast(self, stmt: Statement, operand: Value, plain: Value) -> Value:
        if stmt.dtype is DType.f32 and operand.dims and operand.dtype in (DType.u8, DType.i8):
            low, high = map(int, operand.span or (-128, 255))
            text = self.typed(operand)
            if self.wanted is DType.f16:
                return self.define(f"integer_f16({text}, {low})", plain)
            if high - low < _FEW_VALUES:
                return self.define(f"integer_bf16({text}, {low})", plain)
            if operand.dtype is DType.i8:
                return self.define(f"signed_byte_bf16({text})", plain)
        return super()._cast(stmt, operand, plain)

    def elsewhere(self, dims: frozenset[str], dtype: DType) -> str:
        """Zero where a mask is false: rows beyond the end."""
        return ", other=0.0" if dtype.is_float else ", other=0"
