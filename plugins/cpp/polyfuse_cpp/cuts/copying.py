"""Copies of a kernel's statements in which what is known of a part of its points is decided."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.kernel import Section
from polyfuse.ir.statements import Load, Statement, Store, statement, with_index, with_names
from polyfuse.ir.types import DType
from polyfuse.kit import backward_slice
from polyfuse.symbolic import IndexLike, is_nonnegative


@dataclass
class Copying:
    """Statements being copied: equal values once, and none that is known.

    Attributes:
        body: the copies.
        made: the name of each value, by what computes it.
        numbers: values that are index expressions.
        answers: values that are known to be true or false.
        zeros: constants that are zero, of floating point and without a sign.
        unsigned: values that are never a zero with a sign. Adding zero leaves them as they are; it makes such
            a value of any other, and so does adding one of them.
    """

    body: list[Statement] = field(default_factory=list)
    made: dict[tuple[object, ...], str] = field(default_factory=dict)
    numbers: dict[str, IndexLike] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    unsigned: set[str] = field(default_factory=set)

    def copy(self, stmt: Statement, names: dict[str, str], change: Callable[[IndexLike], IndexLike]) -> None:
        """Write a statement with other indices; `names` are those of the values that were copied."""
        args = tuple(names[a] for a in stmt.args)
        made = with_index(with_names(stmt, stmt.targets, args), change)
        match made:
            case Store():
                self.store(made)
            case Load():
                names[made.target] = self.load(made)
            case _:
                names[made.targets[0]] = self.value(made.op, args, made.dtype, made.payload)

    def constant(self, value: int | bool, dtype: DType) -> str:
        """The name of a constant."""
        exact = bool(value) if dtype is DType.bool else float(value) if dtype.is_float else value
        return self.value("const", (), dtype, exact)

    def load(self, stmt: Load) -> str:
        """The name of what a load reads: unconditionally, or not at all, where its mask is known."""
        position, mask, other = stmt.indirect, stmt.mask or "", stmt.other or ""
        if self.answers.get(mask) is False:
            return other
        if self.answers.get(mask, not mask):
            return self.value("load", position, stmt.dtype, stmt.payload._replace(masked=False))
        return self.value("load", (*position, mask, other), stmt.dtype, stmt.payload._replace(masked=True))

    def store(self, stmt: Store) -> None:
        """Write a store: without a mask that is true, and not at all where it is false."""
        answer = self.answers.get(stmt.mask or "")
        if answer is not False:
            self.body.append(replace(stmt, mask=None) if answer else stmt)

    def value(self, op: str, args: tuple[str, ...], dtype: DType, payload: Any = None) -> str:
        """The name of a value: a known one where it is computed already, or is decided."""
        known = self._decided(op, args)
        if known is not None:
            return known
        key = (op, args, dtype, type(payload), repr(payload))
        if key not in self.made:
            name = f"v{len(self.made) + 1}"
            self.made[key] = name
            self.body.append(statement(op, (name,), args, dtype, payload))
            if op == "index" or (op == "const" and dtype is DType.i64):
                self.numbers[name] = payload
            if op == "const" and dtype is DType.bool:
                self.answers[name] = bool(payload)
            if op == "const" and dtype.is_float and payload == 0 and math.copysign(1.0, payload) > 0:
                self.zeros.add(name)
            if name in self.zeros or (op == "add" and not self.unsigned.isdisjoint(args)):
                self.unsigned.add(name)
        return self.made[key]

    def _decided(self, op: str, args: tuple[str, ...]) -> str | None:
        """The name of what a value is known to be."""
        if op in ("bitwise_and", "bitwise_or"):
            for known, other in (args, args[::-1]):
                if known in self.answers:
                    return other if self.answers[known] is (op == "bitwise_and") else known
        if op == "add":
            for zero, other in (args, args[::-1]):
                if zero in self.zeros and other in self.unsigned:
                    return other
        if op == "where":
            if args[0] in self.answers:
                return args[1] if self.answers[args[0]] else args[2]
            if args[1] == args[2]:
                return args[1]
        if len(args) == 2 and args[0] in self.numbers and args[1] in self.numbers:
            answer = compare(op, self.numbers[args[0]] - self.numbers[args[1]])
            if answer is not None:
                return self.constant(answer, DType.bool)
        return None


def compare(op: str, difference: IndexLike) -> bool | None:
    """What a comparison says of two numbers with some difference; None where it is not always the same, or is
    no comparison.
    """
    if op in ("lt", "ge"):
        if is_nonnegative(difference):
            return op == "ge"
        return op == "lt" if is_nonnegative(-difference - 1) else None
    if op in ("gt", "le"):
        if is_nonnegative(-difference):
            return op == "le"
        return op == "gt" if is_nonnegative(difference - 1) else None
    if op in ("eq", "ne"):
        apart = is_nonnegative(difference - 1) or is_nonnegative(-difference - 1)
        return (op == "ne") if apart else (op == "eq") if difference == 0 else None
    return None


def needed(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """The sections without values that no store needs."""
    every = [s for part in sections for s in part.body]
    wanted = [a for s in every if isinstance(s, Store) for a in s.args]
    computed = {id(s) for s in backward_slice(every, wanted, lambda stmt: False)}
    return tuple(
        Section(p.looped, tuple(s for s in p.body if isinstance(s, Store) or id(s) in computed))
        for p in sections
    )
