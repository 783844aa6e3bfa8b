"""Weights with two numbers in a byte: what each of the sixteen numbers of four bits becomes is computed once
for all bytes that share a scale, and then looked up.

That a value is made of four bits alone is followed through the statements: a mask, a shift, and what is
chosen where a position is known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfuse.ir.statements import Cast, Compute, Constant, IndexValue, Load, Statement
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, free_axes, substitute
from polyfuse_cpp.matmul.problem import Matmul

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    op: getattr(operator, op) for op in ("eq", "ne", "lt", "le", "gt", "ge")
}
_HALVES = {0: 0x0F, 4: 0xF0}
"""Bits of a byte by the position of the lowest one."""

_BYTES = (DType.u8, DType.i8)


@dataclass(frozen=True)
class Nibbles:
    """A weight whose bytes hold two numbers of the depth.

    Attributes:
        byte: reads the byte.
        shifts: where the bits of both numbers begin.
        instead: for both numbers: which loads give the byte, and which loads and choices another value.
    """

    byte: Load
    shifts: tuple[int, int]
    instead: tuple[Mapping[str, str | None], Mapping[str, str | None]]


def nibbles_of(matmul: Matmul, name: str, inner: Sequence[str]) -> Nibbles | None:
    """How operand B is made of halves of bytes along the axis `name`, with the two numbers along `inner`;
    None where it is made of more.
    """
    if len(inner) != 1 or matmul.facts.sizes[inner[0]] != 2:
        return None
    points = [_Point(matmul, name, inner[0], at) for at in (0, 1)]
    body, value = matmul.b.operand.body, matmul.b.operand.value
    if not all(point.follow(body) for point in points):
        return None
    shifts = [next((s for s, bits in _HALVES.items() if not p.bits[value] & ~bits), -1) for p in points]
    first, second = points
    if first.byte is None or second.byte is None or sorted(shifts) != [0, 4]:
        return None
    if (first.byte.buffer, first.byte.index) != (second.byte.buffer, second.byte.index):
        return None
    return Nibbles(first.byte, (shifts[0], shifts[1]), (first.instead, second.instead))


@dataclass
class _Point:
    """One of both numbers: for each value, which bits of the byte it depends on, or what it is."""

    matmul: Matmul
    name: str
    inner: str
    at: int
    byte: Load | None = None
    bits: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    instead: dict[str, str | None] = field(default_factory=dict)

    def follow(self, body: Sequence[Statement]) -> bool:
        """Whether all statements are of the byte, of what is known, and of what all bytes share."""
        return all(self._one(stmt) for stmt in body)

    def _index(self, index: IndexLike) -> IndexLike:
        return substitute(index, {self.inner: self.at})

    def _one(self, stmt: Statement) -> bool:
        match stmt:
            case Constant():
                self.bits[stmt.target] = 0
                if isinstance(stmt.value, int):
                    self.known[stmt.target] = int(stmt.value)
            case IndexValue():
                index = self._index(stmt.index)
                self.bits[stmt.target] = 0
                if isinstance(index, int):
                    self.known[stmt.target] = index
                return self.name not in free_axes(index)
            case Load():
                return self._load(stmt)
            case Cast():
                self._same(stmt.target, stmt.arg)
                if stmt.dtype not in _BYTES:
                    self.whole.discard(stmt.target)
                if stmt.dtype.is_float or stmt.bitwise:
                    self.known.pop(stmt.target, None)
            case Compute():
                self._compute(stmt)
            case _:
                return False
        return True

    def _same(self, target: str, of: str) -> None:
        self.bits[target] = self.bits[of]
        if of in self.known:
            self.known[target] = self.known[of]
        if of in self.whole:
            self.whole.add(target)

    def _load(self, stmt: Load) -> bool:
        if stmt.indirect:
            return False
        if {self.name, self.inner}.isdisjoint(free_axes(stmt.index)):
            # what all bytes share, if it is read for all or for none of them
            self.bits[stmt.target] = 0
            return not any(self.bits[a] for a in stmt.args)
        reads = stmt.mask is None or self.known.get(stmt.mask)
        if reads is None or self.inner in free_axes(stmt.index):
            return False
        if not reads:
            assert stmt.other is not None
            self.instead[stmt.target] = stmt.other
            self._same(stmt.target, stmt.other)
            return True
        if self.matmul.facts.memory[stmt.buffer] not in _BYTES:
            return False
        if self.byte is not None and (self.byte.buffer, self.byte.index) != (stmt.buffer, stmt.index):
            return False
        self.byte, self.instead[stmt.target] = stmt, None
        self.bits[stmt.target] = 0xFF
        self.whole.add(stmt.target)
        return True

    def _compute(self, stmt: Compute) -> None:
        args, target = stmt.args, stmt.target
        values = [self.known.get(a) for a in args]
        if stmt.op == "where" and values[0] is not None:
            chosen = args[1] if values[0] else args[2]
            self._same(target, chosen)
            self.instead[target] = chosen
            return
        self.bits[target] = 0
        for a in args:
            self.bits[target] |= self.bits[a]
        if len(args) != 2:
            return
        left, right = values
        if stmt.op in _COMPARISONS and left is not None and right is not None:
            self.known[target] = int(_COMPARISONS[stmt.op](left, right))
        if args[0] not in self.whole or right is None:
            return
        if stmt.op == "bitwise_and":
            self.bits[target] &= right
        elif stmt.op == "shift_right" and 0 <= right < 8:
            self.bits[target] &= -1 << right
        elif stmt.op == "shift_left" and 0 <= right < 8:
            self.bits[target] &= 0xFF >> right
