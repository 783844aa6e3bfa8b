"""Classes of sizes: what code generators choose by a size changes at few of them.

A class of a symbol is a range of its values, and whether they are multiples of what the device likes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

ClassKey: TypeAlias = tuple[tuple[int, bool], ...]
"""For each symbol, the number of its range, and whether its value is a multiple. Empty: all sizes."""

_MOST = 32
"""Programs for classes that a graph has at most; further sizes share one that serves all."""


@dataclass(frozen=True)
class SizeSymbol:
    """A symbol whose value is an input of the graph.

    Attributes:
        name: in the graph.
        position: of the input; None: data decide it within a call, and the last call's value counts.
        lo, hi: its bounds; None: none.
        multiples: whether it may be written as a multiple of another symbol.
    """

    name: str
    position: int | None
    lo: int
    hi: int | None
    multiples: bool


@dataclass(frozen=True)
class SizeClasses:
    """The classes of a graph.

    Attributes:
        symbols: those by which sizes are classified.
        met: the values with which the graph was captured.
        first: where ranges begin, ascending; sizes below the first of them are a range, too.
        multiple: of which values may be multiples; 1: that does not matter.
    """

    symbols: tuple[SizeSymbol, ...]
    met: tuple[int, ...]
    first: tuple[int, ...]
    multiple: int

    @property
    def positions(self) -> tuple[int, ...]:
        """Of the inputs that are values of the symbols."""
        return tuple(item.position for item in self.symbols if item.position is not None)

    @property
    def noted(self) -> dict[str, int]:
        """The symbols that data decide, with values to begin with. They come after all others."""
        return {item.name: n for item, n in zip(self.symbols, self.met) if item.position is None}

    def key(self, sizes: Sequence[Any]) -> ClassKey:
        """The class of some values of the symbols."""
        if not all(type(size) is int for size in sizes):
            return ()
        return tuple(
            (bisect_right(self.first, size), self._is_multiple(item, size))
            for item, size in zip(self.symbols, sizes)
        )

    def ahead(self, sizes: Iterable[int]) -> dict[ClassKey, tuple[int, ...]]:
        """Classes in which each symbol has one of some sizes or the one met, with sizes to make each for."""
        found: dict[ClassKey, tuple[int, ...]] = {self.key(self.met): self.met}
        wanted = tuple(sizes)
        choices = [
            [now, *(n for n in wanted if item.lo <= n and (item.hi is None or n <= item.hi))]
            for item, now in zip(self.symbols, self.met)
        ]
        for chosen in product(*choices):
            if not self.allows(len(found)):
                break
            found.setdefault(self.key(chosen), chosen)
        return found

    @staticmethod
    def allows(count: int) -> bool:
        """Whether a graph with so many programs may have another one."""
        return count < _MOST

    def bounds(self, item: SizeSymbol, number: int) -> tuple[int, int | None]:
        """The bounds of a symbol in one of the ranges."""
        lo = max(item.lo, self.first[number - 1]) if number else item.lo
        if number == len(self.first):
            return lo, item.hi
        last = self.first[number] - 1
        return lo, last if item.hi is None else min(last, item.hi)

    def _is_multiple(self, item: SizeSymbol, size: int) -> bool:
        return (
            self.multiple > 1
            and item.multiples
            and item.position is not None
            and size > 0
            and size % self.multiple == 0
        )
