"""Windows over which pooling works: where they lie, what is in them, and which of them an element is in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce as accumulate
from itertools import product as pairs
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, at_least, exists, less, masked
from polyfuse.lowering.reductions.reduction import reduce
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import make
from polyfuse.symbolic import IndexLike, contiguous_strides, maximum, product

LARGEST_WRITTEN_OUT = 25
"""Most terms of a sum, or elements of a window, that are written out; more are reduced by a loop."""

Axes = Sequence[IndexLike]


def added(terms: Iterable[Expr]) -> Expr:
    """The sum of one or more terms."""
    return accumulate(lambda total, term: make("add", total, term), terms)


def steps_of(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Positions in a space of so many points a dimension, row by row."""
    return pairs(*map(range, counts))


def summed(
    ctx: LoweringContext, result: TensorValue, counts: Sequence[int], term: Callable[[Axes, Axes], Expr]
) -> Expr:
    """For each element of `result`, the sum of ``term(axes, step)`` over the steps of a space of `counts`."""
    if not math.prod(counts):
        return const(0, result.kernel_type.compute)
    if math.prod(counts) <= LARGEST_WRITTEN_OUT:
        return added(term(axes_of(result.size), step) for step in steps_of(counts))
    return looped(ctx, result, counts, term)


def looped(
    ctx: LoweringContext, result: TensorValue, counts: Sequence[int], term: Callable[[Axes, Axes], Expr]
) -> Expr:
    """The same sum by a loop, however few its terms are."""
    kind, rank = result.kernel_type.compute, result.rank
    target = ctx.temporary(kind, result.device, result.size)
    space, dims = (*result.size, *counts), range(rank, rank + len(counts))
    return reduce(ctx, "sum", space, dims, lambda p: (term(p[:rank], p[rank:]),), (target,))[0]


@dataclass(frozen=True)
class Windows:
    """Where windows lie, one entry a pooled dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements in a window."""
        return self.kernel

    def indices(self, axes: Axes, step: Axes) -> list[IndexLike]:
        """Indices of an element of the window at `axes`, in the pooled dimensions."""
        window = axes[-len(self.kernel) :]
        rows = zip(window, self.stride, self.padding, step, self.dilation, strict=True)
        return [a * s - p + t * d for a, s, p, t, d in rows]

    def first(self, indices: Axes) -> Axes:
        """Those of the first element that there is, of those of the first element of a window."""
        return [maximum(p, p % d) for p, d in zip(indices, self.dilation, strict=True)]

    def exists(self, indices: Axes, axes: Axes, size: Axes) -> Expr:
        """Whether there is an element at `indices` of the window at `axes`."""
        return exists(indices, size[-len(indices) :])


@dataclass(frozen=True)
class AdaptiveWindows:
    """Adaptive windows: along one dimension, output `a` covers ``a * size // out`` up to
    ``ceil((a + 1) * size / out)``.
    """

    size: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements in the longest window."""
        return tuple(
            max(_end(a, n, m) - _start(a, n, m) for a in range(m))  # type: ignore[type-var, misc]
            for n, m in zip(self.size, self.out, strict=True)
        )

    @property
    def overlaps(self) -> tuple[int, ...]:
        """Most windows that one element is in: windows relate to elements as elements do to windows."""
        return AdaptiveWindows(self.out, self.size).counts

    @property
    def even(self) -> Windows | None:
        """The same as ordinary windows, where all are equal and none overlap."""
        if any(n % m for n, m in zip(self.size, self.out, strict=True)):
            return None
        kernel = tuple(n // m for n, m in zip(self.size, self.out, strict=True))
        return Windows(kernel, kernel, (0,) * len(kernel), (1,) * len(kernel))

    def starts(self, axes: Axes) -> list[IndexLike]:
        """First element of the window at `axes`, which may have leading dimensions."""
        return [_start(a, n, m) for a, n, m in self._rows(axes)]

    def ends(self, axes: Axes) -> list[IndexLike]:
        """One past the last element."""
        return [_end(a, n, m) for a, n, m in self._rows(axes)]

    def elements(self, axes: Axes) -> IndexLike:
        """How many elements the window has."""
        return product(end - start for start, end in zip(self.starts(axes), self.ends(axes), strict=True))

    def _rows(self, axes: Axes) -> Iterator[tuple[IndexLike, int, int]]:
        return zip(axes[-len(self.size) :], self.size, self.out, strict=True)

    def indices(self, axes: Axes, step: Axes) -> list[IndexLike]:
        """Indices of an element of the window at `axes`, in the pooled dimensions."""
        return [start + t for start, t in zip(self.starts(axes), step, strict=True)]

    def first(self, indices: Axes) -> Axes:
        """The first element of every window is there."""
        return indices

    def exists(self, indices: Axes, axes: Axes, size: Axes) -> Expr:
        """Whether the window at `axes` reaches as far as `indices`."""
        return all_of(*(less(p, end) for p, end in zip(indices, self.ends(axes), strict=True)))


def _start(a: IndexLike, size: int, out: int) -> IndexLike:
    return a * size // out


def _end(a: IndexLike, size: int, out: int) -> IndexLike:
    return -(-(a + 1) * size // out)


AnyWindows = Windows | AdaptiveWindows


def element(w: AnyWindows, value: TensorValue, axes: Axes, indices: Axes, other: Expr) -> Expr:
    """The element at `indices` in the pooled dimensions for the window at `axes`; `other` outside of it."""
    lead = axes[: len(axes) - len(indices)]
    safe = [0 if n == 1 else p for p, n in zip(indices, value.size[-len(indices) :], strict=True)]
    return masked(value.at([*lead, *safe]), w.exists(indices, axes, value.size), other)


def windows_of(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    """Windows from an operator's arguments, where one number may stand for all and no stride for the kernel
    size.
    """

    def spread(value: Any, default: tuple[int, ...]) -> tuple[int, ...]:
        listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not listed:
            return default
        if not all(isinstance(v, int) for v in listed):
            raise UnsupportedError("no kernel pools windows of a size that varies")
        return listed * rank if len(listed) == 1 else listed

    sizes = spread(kernel, ())
    return Windows(
        sizes,
        spread(stride if stride is not None else (), sizes),
        spread(padding, (0,) * rank),
        spread(dilation, (1,) * rank),
    )


def ordered_as(like: TensorValue, dtype: DType, size: tuple[IndexLike, ...]) -> TensorValue:
    """A dense value of another size and no content yet, its channels innermost where those of `like` are."""
    stride = contiguous_strides(size)
    if like.rank >= 4 and like.stride[1] == 1 and like.size[1] != 1:
        outer, inner, *rest = contiguous_strides((size[0], *size[2:], size[1]))
        stride = (outer, rest[-1], inner, *rest[:-1])
    return TensorValue(dtype, dtype.torch, like.device, size, stride)


def adaptive_windows(size: Axes, out: Axes) -> AdaptiveWindows:
    """Adaptive windows, from the elements and the results of each pooled dimension."""
    if not all(isinstance(n, int) for n in (*size, *out)):
        raise UnsupportedError("no kernel pools adaptive windows of a size that varies")
    return AdaptiveWindows(tuple(size), tuple(out))  # type: ignore[arg-type]


def pooled_rank(node: Any) -> int:
    """Number of pooled dimensions, which the operator's name ends in."""
    name = str(node.target).split(".")[1]
    return int(name[name.index("pool") + 4])


def sum_over_windows(
    w: Windows, axes: Axes, out_size: Axes, passed: Callable[[list[IndexLike]], Expr], zero: Expr
) -> Expr:
    """The sum of what the windows over an input position pass back to it."""
    rank = len(w.kernel)
    reach = [-(-k // s) for k, s in zip(w.kernel, w.stride, strict=True)]
    if math.prod(reach) > LARGEST_WRITTEN_OUT or any(d != 1 for d in w.dilation):
        raise UnsupportedError("no kernel computes the backward of heavily overlapping windows")

    def term(back: Sequence[int]) -> Expr:
        window: list[IndexLike] = []
        tests: list[Expr] = []
        for d, b in enumerate(back):
            shifted = axes[len(axes) - rank + d] + w.padding[d]
            n = out_size[len(out_size) - rank + d]
            index = shifted // w.stride[d] - b
            tests += [at_least(index, 0), less(index, n)]
            if (b + 1) * w.stride[d] > w.kernel[d]:
                # how far behind the window's start the position is
                tests.append(less(shifted % w.stride[d] + b * w.stride[d], w.kernel[d]))
            window.append(0 if n == 1 else index)
        return masked(passed(window), all_of(*tests), zero)

    return added(map(term, steps_of(reach)))
