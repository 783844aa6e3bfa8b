"""Windows over which pooling works: where they lie, what is in them, and which of them an element is in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as pairs
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr
from polyfuse.lowering.indexing.conditions import all_of, at_least, between, less, masked
from polyfuse.lowering.value import TensorValue
from polyfuse.rewrite import make
from polyfuse.symbolic import IndexLike

LARGEST_WRITTEN_OUT = 25
"""Most window elements that are written out; larger windows are reduced by a loop."""


@dataclass(frozen=True)
class Windows:
    """Where windows lie, one entry a pooled dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of pooled dimensions."""
        return len(self.kernel)

    @property
    def count(self) -> int:
        """Elements in a window."""
        total = 1
        for k in self.kernel:
            total *= k
        return total

    def steps(self) -> Iterator[tuple[int, ...]]:
        """Positions in a window, row by row."""
        return pairs(*(range(k) for k in self.kernel))


def windows_of(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    """Windows from an operator's arguments, where one number may stand for all and no stride for the kernel
    size.
    """

    def spread(value: Any, default: tuple[int, ...]) -> tuple[int, ...]:
        listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not listed:
            return default
        if not all(isinstance(v, int) for v in listed):
            raise UnsupportedError("windows of a size that varies are pooled by eager")
        return listed * rank if len(listed) == 1 else listed

    sizes = spread(kernel, ())
    return Windows(
        sizes,
        spread(stride if stride is not None else (), sizes),
        spread(padding, (0,) * rank),
        spread(dilation, (1,) * rank),
    )


def pooled_rank(node: Any) -> int:
    """Number of pooled dimensions, which the operator's name ends in."""
    name = str(node.target).split(".")[1]
    return int(name[name.index("pool") + 4])


def placed(w: Windows, axes: Sequence[IndexLike], step: Sequence[IndexLike]) -> list[IndexLike]:
    """Input position of a step of the window of an output position, in the pooled dimensions."""
    return [
        a * s - p + t * d
        for a, s, p, t, d in zip(axes[-w.rank :], w.stride, w.padding, step, w.dilation, strict=True)
    ]


def element_at(
    value: TensorValue, lead: Sequence[IndexLike], place: Sequence[IndexLike], other: Expr
) -> Expr:
    """An element of the input, or `other` outside of it."""
    size = value.size[-len(place) :]
    inside = all_of(*(between(p, 0, n) for p, n in zip(place, size, strict=True)))
    return masked(
        value.at([*lead, *(0 if n == 1 else p for p, n in zip(place, size, strict=True))]), inside, other
    )


def sum_over_windows(
    w: Windows, axes: Sequence[IndexLike], out_size: Sequence[IndexLike], passed: Any, zero: Expr
) -> Expr:
    """The sum of what the windows over an input position pass back to it."""
    reach = [-(-k // s) for k, s in zip(w.kernel, w.stride, strict=True)]
    terms = 1
    for r in reach:
        terms *= r
    if terms > LARGEST_WRITTEN_OUT or any(d != 1 for d in w.dilation):
        raise UnsupportedError("the backward of heavily overlapping windows is left to eager")
    total: Expr | None = None
    for back in pairs(*(range(r) for r in reach)):
        window: list[IndexLike] = []
        tests: list[Expr] = []
        for d, b in enumerate(back):
            shifted = axes[len(axes) - w.rank + d] + w.padding[d]
            n = out_size[len(out_size) - w.rank + d]
            place = shifted // w.stride[d] - b
            tests += [at_least(place, 0), less(place, n)]
            if (b + 1) * w.stride[d] > w.kernel[d]:
                # how far behind the window's start the position is
                tests.append(less(shifted % w.stride[d] + b * w.stride[d], w.kernel[d]))
            window.append(0 if n == 1 else place)
        term = masked(passed(window), all_of(*tests), zero)
        total = term if total is None else make("add", total, term)
    return zero if total is None else total


@dataclass(frozen=True)
class Bins:
    """Adaptive windows along one dimension: output `a` covers ``a * size // out`` up to
    ``ceil((a + 1) * size / out)``.
    """

    size: int
    out: int

    @property
    def is_even(self) -> bool:
        """Whether all windows are equal and none overlap."""
        return self.size % self.out == 0

    @property
    def longest(self) -> int:
        """Elements in the longest window."""
        return max(self.end(a) - self.start(a) for a in range(self.out))  # type: ignore[type-var, return-value]

    @property
    def overlap(self) -> int:
        """Most windows that one element is in."""
        return max(self.last(y) - self.first(y) + 1 for y in range(self.size))  # type: ignore[type-var, return-value]

    def start(self, a: IndexLike) -> IndexLike:
        """First element of window `a`."""
        return a * self.size // self.out

    def end(self, a: IndexLike) -> IndexLike:
        """One past the last element of window `a`."""
        return -(-(a + 1) * self.size // self.out)

    def first(self, y: IndexLike) -> IndexLike:
        """First window that element `y` is in."""
        return y * self.out // self.size

    def last(self, y: IndexLike) -> IndexLike:
        """Last window that element `y` is in."""
        return -(-(y + 1) * self.out // self.size) - 1


def bins_of(size: Sequence[IndexLike], out: Sequence[IndexLike]) -> list[Bins]:
    """The adaptive windows of each pooled dimension, from its elements and its results."""
    found = [Bins(n, m) for n, m in zip(size, out, strict=True) if isinstance(n, int) and isinstance(m, int)]
    if len(found) != len(size):
        raise UnsupportedError("adaptive windows of a size that varies are pooled by eager")
    return found


def even_windows(bins: Sequence[Bins]) -> Windows:
    """Adaptive windows that are all equal, as ordinary ones."""
    kernel = tuple(b.size // b.out for b in bins)
    return Windows(kernel, kernel, (0,) * len(bins), (1,) * len(bins))


def binned(
    value: TensorValue,
    bins: Sequence[Bins],
    place: Sequence[IndexLike],
    step: Sequence[IndexLike],
    other: Expr,
) -> tuple[Expr, list[IndexLike]]:
    """Element `step` of the adaptive window at `place` (`other` past its end), and where that is."""
    rank = len(bins)
    at = [b.start(a) + t for b, a, t in zip(bins, place[-rank:], step, strict=True)]
    inside = all_of(*(less(p, b.end(a)) for p, b, a in zip(at, bins, place[-rank:], strict=True)))
    return masked(value.at([*place[:-rank], *at]), inside, other), at
