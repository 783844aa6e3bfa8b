"""How names go on from one period of a graph to the next.

What a period makes is numbered, and so many numbers later in the next period; what it alone is given has a
name of its own in each. All other names are those of values that all periods share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

from polyfuse.frontend.periods import NotRepeated
from polyfuse.ir.expr import Access, Expr, loads
from polyfuse.symbolic import Index

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Numbering:
    """When numbered names were given out.

    Attributes:
        marks: the numbers of the next names, by prefix, at some moments.
    """

    marks: Sequence[Mapping[str, int]]

    def age(self, name: str) -> int:
        """How many of the moments had passed when a name was given out; 0 for one without a number."""
        found = _NUMBER.search(name)
        if found is None:
            return 0
        prefix, number = name[: found.start()], int(found.group())
        return sum(number >= mark.get(prefix, 0) for mark in self.marks)


@dataclass
class Matching:
    """The names in what one period became, beside those of another one, `distance` periods later.

    Attributes:
        numbering: of the names: those of age 1 belong to the first of the two, those of age 2 to the other.
        inputs: the names of what is given to single periods, in lists of what corresponds from
            one period to the next.
        readers: the first period that each of them is given to.
        distance: between the two; names of age 0 are a period away from those that they match.
        pairs: what was matched.
    """

    numbering: Numbering
    inputs: Sequence[Sequence[str]]
    readers: Mapping[str, int]
    distance: int
    pairs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._back: dict[str, str] = {}
        self._equal: set[tuple[Expr, Expr]] = set()

    def match(self, one: Any, two: Any) -> None:
        """Match the names in two values that have to be equal otherwise.

        Raises:
            NotRepeated: they are not.
        """
        if isinstance(one, str) and isinstance(two, str):
            self._pair(one, two)
        elif type(one) is not type(two):
            raise NotRepeated(f"{one} differs from {two}")
        elif isinstance(one, Expr):
            self._match_expressions(one, two)
        elif isinstance(one, Access):
            self._pair(one.buffer, two.buffer)
            if one[1:] != two[1:]:
                raise NotRepeated(f"{one} differs from {two}")
        elif isinstance(one, (tuple, list)):
            if len(one) != len(two):
                raise NotRepeated(f"{one} differs from {two}")
            for first, second in zip(one, two, strict=True):
                self.match(first, second)
        elif is_dataclass(one) and not isinstance(one, (type, Index)):
            for name in compared(type(one)):
                self.match(getattr(one, name), getattr(two, name))
        elif one is not two and (one != two or repr(one) != repr(two)):
            raise NotRepeated(f"{one} differs from {two}")

    def _match_expressions(self, one: Expr, two: Expr) -> None:
        stack = [(one, two)]
        while stack:
            pair = one, two = stack.pop()
            if pair in self._equal:
                continue
            self._equal.add(pair)
            if one is two:
                for read in loads(one):
                    self._pair(read.buffer, read.buffer)
                continue
            if one.op != two.op or one.dtype is not two.dtype or len(one.args) != len(two.args):
                raise NotRepeated(f"{one.op} differs from {two.op}")
            self.match(one.payload, two.payload)
            stack.extend(zip(one.args, two.args, strict=True))

    def _pair(self, one: str, two: str) -> None:
        if self.pairs.setdefault(one, two) != two or self._back.setdefault(two, one) != one:
            raise NotRepeated(f"{one} is at once {two} and another")

    def tables(self, copies: int) -> list[dict[str, str]]:
        """For each of so many periods behind the first one, what the names of that become, and for all that
        comes behind these, where it has names of it.

        Raises:
            NotRepeated: names do not go on evenly.
        """
        found: list[dict[str, str]] = [{} for _ in range(copies + 1)]
        positions = {name: (row, at) for row in self.inputs for at, name in enumerate(row)}
        for one, two in self.pairs.items():
            if one in positions:
                row, at = positions[one]
                step = {0: 1, 1: self.distance}.get(self.readers[one])
                if step is None or [two] != row[at + step : at + step + 1]:
                    raise NotRepeated(f"{one} differs from {two}")
                for copy in range(1, copies + 1):
                    found[copy - 1][one] = row[at + copy]
            elif one != two:
                self._count(one, two, found)
        for name, (row, at) in positions.items():
            if 0 <= self.readers[name] < 2 and at + copies < len(row):
                found[-1][name] = row[at + copies]
        return found

    def _count(self, one: str, two: str, found: list[dict[str, str]]) -> None:
        age = self.numbering.age(one)
        first, second = _NUMBER.search(one), _NUMBER.search(two)
        if first is None or second is None or age > 1 or self.numbering.age(two) != age + 1:
            raise NotRepeated(f"{one} differs from {two}")
        (start, end), number = first.span(), int(first.group())
        step, rest = divmod(int(second.group()) - number, self.distance if age else 1)
        if one[:start] != two[: second.start()] or one[end:] != two[second.end() :] or rest or step <= 0:
            raise NotRepeated(f"{one} differs from {two}")
        copies = len(found) - 1
        # what is named in the first of the two may be made by the steps of the other one
        for start_at in (number,) if age else (number, number + step):
            for copy in range(1, copies + 1):
                found[copy - 1][f"{one[:start]}{start_at}{one[end:]}"] = (
                    f"{one[:start]}{start_at + copy * step}{one[end:]}"
                )
        late = number if age else number + step
        found[-1][f"{one[:start]}{late}{one[end:]}"] = f"{one[:start]}{late + copies * step}{one[end:]}"


@cache
def compared(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that make two of it equal."""
    return tuple(item.name for item in fields(kind) if item.compare)
