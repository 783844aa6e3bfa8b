"""Sorting, and the largest or smallest of a row: kernels that hold whole rows in registers.

Rows that are too long for that, or whose numbers and places do not fit in 64 bits together, are left to the
library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.base.errors import InvalidOptionError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.nodes import ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse.plugin import Lowering, LoweringContext, Source, TensorValue
from polyfuse.symbolic import Index, IndexLike, is_equal, product, python_text
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.dtypes import pointer_type
from polyfuse_triton.flex.problem import symbols_of
from polyfuse_triton.template import TemplateKernel
from polyfuse_triton.tiling.plan import power_of_two

__all__ = ["LOWERINGS", "LONGEST", "Rows", "sort_source"]

LONGEST = 1024
"""Longest row that can be sorted in registers."""
_COUNTED = 64
"""Longest row of which every number is compared with every other, which takes no exchange between threads and
is built in a fraction of the time.
"""
_TILE, _COMPARISONS = 1024, 8192
"""Numbers of a program that has several rows, and comparisons where all are made."""
_OF_THREAD = 8
_SHORT = (DType.f16, DType.bf16, DType.i16, DType.i8, DType.u8)
_LONG = (DType.f32, DType.i32)


@dataclass(frozen=True)
class Rows:
    """One call.

    Attributes:
        dtype: of the numbers.
        length: of a row.
        kept: how many of the sorted numbers are wanted.
        descending: whether the largest come first.
        sizes: dimensions over rows, outermost first.
        steps: for the numbers, the sorted numbers and their places: the stride of each of these dimensions,
            then that along a row.
    """

    dtype: DType
    length: int
    kept: int
    descending: bool
    sizes: tuple[IndexLike, ...]
    steps: tuple[tuple[IndexLike, ...], ...]

    @property
    def count(self) -> IndexLike:
        """Number of rows."""
        return product(self.sizes)


def sort(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    dim: Any = -1,
    descending: Any = False,
    *,
    stable: Any = None,
) -> tuple[TensorValue, ...]:
    """Numbers in order, and where they were; always in a stable way."""
    return _sorted(ctx, node, value, dim, bool(descending))


def sort_stable(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    *,
    stable: Any = None,
    dim: Any = -1,
    descending: Any = False,
) -> tuple[TensorValue, ...]:
    """The overload that takes its arguments by name."""
    return _sorted(ctx, node, value, dim, bool(descending))


def topk(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    k: Any,
    dim: Any = -1,
    largest: Any = True,
    sorted: Any = True,
) -> tuple[TensorValue, ...]:
    """The largest or smallest numbers in order, and where they were; of equal ones the first."""
    return _sorted(ctx, node, value, dim, bool(largest), k)


LOWERINGS = {
    "aten.sort.default": Lowering(sort, library=True),
    "aten.sort.stable": Lowering(sort_stable, library=True),
    "aten.topk.default": Lowering(topk, library=True),
}


def _sorted(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: Any, descending: bool, kept: Any = None
) -> tuple[TensorValue, ...]:
    if value.dtype not in (*_SHORT, *_LONG):
        raise UnsupportedError(f"rows of {value.torch_dtype} are sorted by the library")
    if not value.rank or not isinstance(dim, int):
        raise UnsupportedError("a number alone is sorted by the library")
    dim %= value.rank
    length = value.size[dim]
    kept = length if kept is None else kept
    longest = _longest(ctx.settings)
    if not isinstance(length, int) or not isinstance(kept, int) or not 1 < length <= longest or kept < 1:
        raise UnsupportedError(f"rows of {length} are sorted by the library")
    view = ctx.realize(value)
    if view.stride[dim] != 1:
        raise UnsupportedError("rows that are no lines in memory are sorted by the library")
    results = [ctx.stored(fake) for fake in node.meta["val"]]
    views = [view, *(ctx.realize(result) for result in results)]
    rows = _rows(value.dtype, views, dim, length, kept, descending)
    symbols = symbols_of((*rows.sizes, *(s for steps in rows.steps for s in steps)))
    kernel = TemplateKernel("sort", lambda aligned: sort_source(rows, aligned), ctx.settings)
    outputs = tuple(v.buffer for v in views[1:])
    given = (*views, *symbols.values())
    ctx.emit(ExternCall(ctx.fresh("call"), ctx.add_object("sort_", kernel), given, (), outputs, "into"))
    return tuple(results)


def _longest(settings: Settings) -> int:
    """The longest row that is sorted here."""
    wanted = str(settings.plugin_option("triton", "sorted_row", "") or _COUNTED)
    if not wanted.isdigit():
        raise InvalidOptionError(f"option 'triton.sorted_row' has {wanted!r}", "write a number, such as 64")
    return min(LONGEST, int(wanted))


def _rows(dtype: DType, views: Sequence[View], dim: int, length: int, kept: int, descending: bool) -> Rows:
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
        kept,
        descending,
        tuple(sizes),
        tuple((*s, e) for s, e in zip(steps, ends, strict=True)),
    )


def sort_source(rows: Rows, aligned: bool) -> Source:
    """The kernel that sorts some rows in each program."""
    block = power_of_two(rows.length)
    counts = block <= _COUNTED
    side = max(1, min(_TILE // block, _COMPARISONS // block**2 if counts else _TILE))
    if isinstance(rows.count, int):
        side = min(side, power_of_two(max(1, rows.count)))
    symbols = symbols_of((*rows.sizes, *(s for steps in rows.steps for s in steps)))
    out = Writer()
    out.line("@triton.jit")
    parameters = ["t0", "t1", "t2", *symbols, "ROWS: tl.constexpr", "BLOCK: tl.constexpr"]
    out.line(f"def {Source.SYMBOL}({', '.join(parameters)}):")
    with out.indented():
        _head(out, rows)
        (_counting if counts else _exchanging)(out, rows)
    kinds = (rows.dtype, rows.dtype, DType.i64)
    meta = KernelMeta(
        args=(
            *(MetaArg(f"t{k}", "ptr", pointer_type(kind), aligned) for k, kind in enumerate(kinds)),
            *(MetaArg(s, "size", "i64") for s in symbols),
        ),
        constexprs=(("ROWS", side), ("BLOCK", block)),
        num_warps=4 if counts else max(1, min(8, side * block // (32 * _OF_THREAD))),
        num_stages=1,
        grid=(f"({_text(rows.count)} + {side - 1}) // {side}", 1, 1),
    )
    return Source("sort", out.text(), "triton", meta=meta.text())


def _head(out: Writer, rows: Rows) -> None:
    """Where the rows are, and a key for each number."""
    out.line("row = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]")
    out.line("at = tl.arange(0, BLOCK)[None, :]")
    out.line(f"inside = row < {_text(rows.count)}")
    out.line(f"exists = inside & (at < {rows.length})")
    rest = "row"
    for d in reversed(range(1, len(rows.sizes))):
        out.line(f"p{d} = {rest} % {_text(rows.sizes[d])}")
        out.line(f"rest{d} = {rest} // {_text(rows.sizes[d])}")
        rest = f"rest{d}"
    out.line(f"p0 = {rest}")
    out.line(f"first = {_row_start('t0', rows.steps[0])}")
    out.line("value = tl.load(first + at, mask=exists, other=0)")
    out.line(f"key = sort_key(value, at, exists, {rows.descending})")


def _counting(out: Writer, rows: Rows) -> None:
    """The place of each number is how many keys are smaller; no two are equal."""
    out.line("smaller = key[:, None, :] < key[:, :, None]")
    out.line("place = tl.sum(smaller.to(tl.int32), 2)")
    out.line(f"kept = exists & (place < {rows.kept})")
    _stores(out, rows, "place", ("value", "tl.broadcast_to(at, [ROWS, BLOCK]).to(tl.int64)"))


def _exchanging(out: Writer, rows: Rows) -> None:
    """Sorted keys hold the place that each number had."""
    mask = 0xFFFF if rows.dtype in _SHORT else 0xFFFFFFFF
    out.line(f"place = (tl.sort(key) & {mask}).to(tl.int32)")
    out.line(f"kept = inside & (at < {rows.kept})")
    # again from memory: the sign of a zero and the bits of a NaN are not in its rank
    out.line("found = tl.load(first + place, mask=kept, other=0)")
    _stores(out, rows, "at", ("found", "place.to(tl.int64)"))


def _stores(out: Writer, rows: Rows, place: str, texts: Sequence[str]) -> None:
    for k, text in enumerate(texts, 1):
        steps = rows.steps[k]
        out.line(f"tl.store({_row_start(f't{k}', steps)} + {place} * {_text(steps[-1])}, {text}, mask=kept)")


def _row_start(name: str, steps: Sequence[IndexLike]) -> str:
    return " + ".join([name, *(f"p{d} * {_text(step)}" for d, step in enumerate(steps[:-1]) if step != 0)])


def _text(size: IndexLike) -> str:
    return f"({python_text(size)})" if isinstance(size, Index) else str(size)
