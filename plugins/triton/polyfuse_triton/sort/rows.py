"""The rows that one call sorts, and where they are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.flex.problem import symbols_of
from polyfuse.ir.nodes import View
from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import Index, IndexLike, is_equal, product, python_text
from polyfuse_triton.build.meta import MetaArg
from polyfuse_triton.dtypes import pointer_type


@dataclass(frozen=True)
class Rows:
    """One call.

    Attributes:
        dtype: of the numbers.
        length: of a row.
        stored: how many of the sorted numbers are wanted.
        descending: whether the largest come first.
        sizes: dimensions over rows, outermost first.
        steps: for the numbers, the sorted numbers and their positions: the stride of each of these
            dimensions, then that along a row.
    """

    dtype: DType
    length: int
    stored: int
    descending: bool
    sizes: tuple[IndexLike, ...]
    steps: tuple[tuple[IndexLike, ...], ...]

    @property
    def count(self) -> IndexLike:
        """Number of rows."""
        return product(self.sizes)

    @property
    def symbols(self) -> dict[str, Index]:
        """Sizes that the kernel is given, by the names of its parameters."""
        return symbols_of((*self.sizes, *(s for steps in self.steps for s in steps)))


def rows_of(
    dtype: DType, views: Sequence[View], dim: int, length: int, stored: int, descending: bool
) -> Rows:
    """A call as data: dimensions over rows that are one in memory are one here."""
    sizes: list[IndexLike] = []
    steps: list[list[IndexLike]] = [[] for _ in views]
    for d, size in enumerate(views[0].size):
        if d == dim or size == 1:
            continue
        here = [v.stride[d] for v in views]
        if sizes and all(is_equal(own[-1], step * size) for own, step in zip(steps, here, strict=True)):
            sizes[-1] = sizes[-1] * size
            for own, step in zip(steps, here, strict=True):
                own[-1] = step
            continue
        sizes.append(size)
        for own, step in zip(steps, here, strict=True):
            own.append(step)
    ends = [v.stride[dim] for v in views]
    return Rows(
        dtype,
        length,
        stored,
        descending,
        tuple(sizes),
        tuple((*s, e) for s, e in zip(steps, ends, strict=True)),
    )


def row_start(name: str, steps: Sequence[IndexLike]) -> str:
    """Where a row begins in what `name` points to."""
    return " + ".join(
        [name, *(f"p{d} * {size_text(step)}" for d, step in enumerate(steps[:-1]) if step != 0)]
    )


def size_text(size: IndexLike) -> str:
    """A size in a kernel's text."""
    return f"({python_text(size)})" if isinstance(size, Index) else str(size)


def arguments(rows: Rows, aligned: bool) -> tuple[MetaArg, ...]:
    """What a kernel is given: the numbers, the sorted numbers, their positions, then sizes."""
    kinds = (rows.dtype, rows.dtype, DType.i64)
    pointers = (MetaArg(f"t{k}", "ptr", pointer_type(kind), aligned) for k, kind in enumerate(kinds))
    return (*pointers, *(MetaArg(s, "size", "i64") for s in rows.symbols))


def write_head(out: Writer, rows: Rows, *constants: str) -> None:
    """The first lines of a kernel that takes these constants besides its arguments."""
    parameters = ["t0", "t1", "t2", *rows.symbols, *(f"{name}: tl.constexpr" for name in constants)]
    out.line("@triton.jit")
    out.line(f"def {Source.SYMBOL}({', '.join(parameters)}):")


def write_row_indices(out: Writer, rows: Rows) -> None:
    """`p0`, `p1`, ...: the indices of `row` along the dimensions over rows."""
    rest = "row"
    for d in reversed(range(1, len(rows.sizes))):
        out.line(f"p{d} = {rest} % {size_text(rows.sizes[d])}")
        out.line(f"rest{d} = {rest} // {size_text(rows.sizes[d])}")
        rest = f"rest{d}"
    out.line(f"p0 = {rest}")


def write_results(out: Writer, rows: Rows, position: str, texts: Sequence[str]) -> None:
    """Store the sorted numbers and their positions at `position` of each row, where `stored`."""
    for k, text in enumerate(texts, 1):
        steps = rows.steps[k]
        address = f"{row_start(f't{k}', steps)} + {position} * {size_text(steps[-1])}"
        out.line(f"tl.store({address}, {text}, mask=stored)")
