"""Numbers of four bits that differ from what they stand for by a factor, and perhaps a summand, of a group:
these are applied to the group's sum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from polyfuse.ir.statements import Cast, Compute, Constant, Statement
from polyfuse.ir.types import DType
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.matmul.narrow.nibbles import Nibbles

_EXACT: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "neg": operator.neg,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "shift_left": operator.lshift,
    "shift_right": operator.rshift,
}
"""What is done to integers before they are scaled."""

_MOST = 256
"""Integers up to this are exact in any type that is met between."""


@dataclass(frozen=True)
class Scaling:
    """How numbers of four bits become those of a weight.

    Attributes:
        numbers: the sixteen integers that are scaled, by the four bits.
        moves: whether something is added to them, or to `offsets`, so that a sum of these has to be moved.
    """

    numbers: tuple[int, ...]
    moves: bool

    @property
    def middle(self) -> int:
        """The four bits of the number from which all are counted: zero, or one in the middle of all."""
        if 0 in self.numbers and min(self.numbers) < 0:
            return self.numbers.index(0)
        half = (min(self.numbers) + max(self.numbers) + 1) / 2
        return min(range(16), key=lambda bits: abs(self.numbers[bits] - half))

    @property
    def offsets(self) -> tuple[int, ...]:
        """How far the numbers are from the one in the middle."""
        return tuple(n - self.numbers[self.middle] for n in self.numbers)

    @property
    def unit(self) -> int:
        """The four bits of a number that is a power of two, by which a product is divided exactly; of the
        greatest number, where there is none.
        """
        powers = (bits for n in (8, 4, 2, 1) for bits in range(16) if abs(self.numbers[bits]) == n)
        return next(powers, self.ends[1])

    @property
    def ends(self) -> tuple[int, int]:
        """The four bits of the least and of the greatest number."""
        bits = range(16)
        return min(bits, key=self.numbers.__getitem__), max(bits, key=self.numbers.__getitem__)


def scaling_of(
    body: Sequence[Statement], value: str, nibbles: Nibbles, varying: Set[str], facts: Facts
) -> Scaling | None:
    """How the halves of bytes are scaled; None where something else is done to them, or not the same to both.

    Args:
        varying: axes along which the bytes, and both halves, lie: factors differ along none of them.
    """
    lower, upper = (
        _Followed(shift, instead, varying, facts).end(body, value)
        for shift, instead in zip(nibbles.shifts, nibbles.instead, strict=True)
    )
    if lower is None or lower != upper or len(set(lower.numbers)) < 2:
        return None
    found = Scaling(lower.numbers, lower.moves)
    return replace(found, moves=found.moves or found.numbers[found.middle] != 0)


@dataclass(frozen=True)
class _Scaled:
    """Integers, and what was done to them since: operations with the names of their other arguments."""

    numbers: tuple[int, ...]
    steps: tuple[tuple[str, ...], ...] = ()
    moves: bool = False


@dataclass
class _Followed:
    """What the statements make of one half of a byte, whose lowest bit is `shift`; the other half is zero."""

    shift: int
    instead: Mapping[str, str | None]
    varying: Set[str]
    facts: Facts
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scaled: dict[str, _Scaled] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    bytes: set[str] = field(default_factory=set)

    def end(self, body: Sequence[Statement], value: str) -> _Scaled | None:
        """What the value is made of."""
        for stmt in body:
            target = stmt.targets[0]
            if self.varying.isdisjoint(self.facts.depends_of(stmt)):
                self.shared.add(target)
            if target in self.instead:
                self._taken(stmt, self.instead[target])
                continue
            match stmt:
                case Constant() if isinstance(stmt.value, int) or float(stmt.value).is_integer():
                    self._note(target, (int(stmt.value),) * 16, stmt.dtype)
                case Cast():
                    self._cast(stmt)
                case Compute():
                    self._compute(stmt)
        return self._as_scaled(value)

    def _note(self, target: str, numbers: tuple[int, ...], dtype: DType) -> None:
        if dtype.is_integer:
            least, span = int(dtype.lowest), 1 << 8 * dtype.itemsize
            numbers = tuple((n - least) % span + least for n in numbers)
        if all(abs(n) <= _MOST for n in numbers):
            self.numbers[target] = numbers
            if dtype.is_integer and dtype.itemsize == 1:
                self.bytes.add(target)

    def _taken(self, stmt: Statement, name: str | None) -> None:
        """The byte, or what a statement is at the position of this half."""
        target = stmt.targets[0]
        if name is None:
            self._note(target, tuple(n << self.shift for n in range(16)), stmt.dtype)
        elif name in self.numbers:
            self.numbers[target] = self.numbers[name]
            self.bytes |= {target} if name in self.bytes else set()
        elif name in self.scaled:
            self.scaled[target] = self.scaled[name]

    def _cast(self, stmt: Cast) -> None:
        if stmt.bitwise and not (stmt.arg in self.bytes and stmt.dtype.is_integer):
            return
        if stmt.arg in self.numbers and stmt.dtype is not DType.bool:
            self._note(stmt.target, self.numbers[stmt.arg], stmt.dtype)
        elif stmt.arg in self.scaled and stmt.dtype.is_float:
            self.scaled[stmt.target] = self.scaled[stmt.arg]

    def _as_scaled(self, name: str) -> _Scaled | None:
        if name in self.numbers:
            return _Scaled(self.numbers[name])
        return self.scaled.get(name)

    def _compute(self, stmt: Compute) -> None:
        args = stmt.args
        known = [self.numbers[a] for a in args if a in self.numbers]
        if len(known) == len(args) and stmt.op in _EXACT:
            if not stmt.op.startswith("shift") or all(0 <= n < 8 for n in known[1]):
                self._note(stmt.target, tuple(map(_EXACT[stmt.op], *known)), stmt.dtype)
            return
        if not stmt.dtype.is_float or len(args) != 2:
            return
        for position, name in enumerate(args):
            one, other = self._as_scaled(name), args[1 - position]
            varies = one is not None and len(set(one.numbers)) > 1
            if one is None or not varies or other not in self.shared:
                continue
            if stmt.op in ("add", "sub", "mul") or (stmt.op == "div" and position == 0):
                steps = (*one.steps, (stmt.op, str(position), other))
                moves = one.moves or stmt.op in ("add", "sub")
                self.scaled[stmt.target] = _Scaled(one.numbers, steps, moves)
