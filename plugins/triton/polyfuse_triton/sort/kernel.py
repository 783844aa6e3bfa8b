"""Sorting, and the largest or smallest of a row: kernels that hold whole rows in registers, and for a few
longer rows, kernels that count for each number how many are before it (`ranks`).

What is left, many long rows and numbers in a type without a key, is left to the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from polyfuse.base.errors import InvalidOptionError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.nodes import ExternCall
from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse.plugin import Expected, Lowering, LoweringContext, Source, TensorValue
from polyfuse.symbolic import IndexLike
from polyfuse_cuda.template import ComparedTemplate
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.sort.ranks import rank_source
from polyfuse_triton.sort.rows import (
    Rows,
    arguments,
    row_start,
    rows_of,
    size_text,
    write_head,
    write_results,
    write_row_indices,
)
from polyfuse_triton.template import triton_template
from polyfuse_triton.tiling.plan import power_of_two

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
_WIDE = (DType.i64,)
"""Types whose numbers and positions do not fit in 64 bits together."""
_FEW_COMPARISONS, _FEW_ROWS, _RANKED = 1 << 26, 4096, 8192
"""Comparisons, rows and numbers of a row up to which all pairs are compared faster than the library sorts: it
has one thread block a row, which takes 22 to 38 us for 256 to 4096 numbers on an H200.
"""


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


def sort_kernel(rows: Rows, dim: int, whole: bool, settings: Settings) -> ComparedTemplate:
    """What a program calls to sort along `dim`: rows in registers (`whole`), or by counting."""
    source = sort_source if whole else rank_source
    return triton_template(
        "sort",
        lambda aligned: source(rows, aligned),
        settings,
        partial(expected_order, dim, rows.descending, rows.stored),
        (sort_kernel, (rows, dim, whole, settings)),
    )


def _sorted(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: Any, descending: bool, stored: Any = None
) -> tuple[TensorValue, ...]:
    if value.dtype not in (*_SHORT, *_LONG, *_WIDE):
        raise UnsupportedError(f"rows of {value.torch_dtype} are sorted by the library")
    if not value.rank or not isinstance(dim, int):
        raise UnsupportedError("a number alone is sorted by the library")
    dim %= value.rank
    length = value.size[dim]
    stored = length if stored is None else stored
    if not isinstance(length, int) or not isinstance(stored, int) or length < 2 or stored < 1:
        raise UnsupportedError(f"rows of {length} are sorted by the library")
    whole = value.dtype not in _WIDE and length <= _longest(ctx.settings)
    if not whole and not _few(value.size, length):
        raise UnsupportedError(f"rows of {length} {value.torch_dtype} are sorted by the library")
    view = ctx.realize(value)
    if view.stride[dim] != 1:
        raise UnsupportedError("rows that are no lines in memory are sorted by the library")
    results = [ctx.stored(fake) for fake in node.meta["val"]]
    views = [view, *(ctx.realize(result) for result in results)]
    rows = rows_of(value.dtype, views, dim, length, stored, descending)
    kernel = sort_kernel(rows, dim, whole, ctx.settings)
    outputs = tuple(v.buffer for v in views[1:])
    given = (*views, *rows.symbols.values())
    ctx.emit(ExternCall(ctx.fresh("call"), ctx.add_object("sort_", kernel), given, (), outputs, "into"))
    return tuple(results)


def _few(size: Sequence[IndexLike], length: int) -> bool:
    """Whether there are so few rows that all pairs of numbers of each may be compared."""
    sizes = [n for n in size if isinstance(n, int)]
    if len(sizes) < len(size) or length > _RANKED:
        return False
    count = prod(sizes) // length
    return count <= _FEW_ROWS and count * length**2 <= _FEW_COMPARISONS


def _longest(settings: Settings) -> int:
    """The longest row that is sorted in registers."""
    wanted = str(settings.plugin_option("triton", "sorted_row", "") or _COUNTED)
    if not wanted.isdigit():
        raise InvalidOptionError(f"option 'triton.sorted_row' has {wanted!r}", "write a number, such as 64")
    return min(LONGEST, int(wanted))


def sort_source(rows: Rows, aligned: bool) -> Source:
    """The kernel that sorts some rows in each program."""
    block = power_of_two(rows.length)
    counts = block <= _COUNTED
    side = max(1, min(_TILE // block, _COMPARISONS // block**2 if counts else _TILE))
    if isinstance(rows.count, int):
        side = min(side, power_of_two(max(1, rows.count)))
    out = Writer()
    write_head(out, rows, "ROWS", "BLOCK")
    with out.indented():
        _head(out, rows)
        (_counting if counts else _exchanging)(out, rows)
    meta = KernelMeta(
        args=arguments(rows, aligned),
        constexprs=(("ROWS", side), ("BLOCK", block)),
        num_warps=4 if counts else max(1, min(8, side * block // (32 * _OF_THREAD))),
        num_stages=1,
        grid=(f"({size_text(rows.count)} + {side - 1}) // {side}", 1, 1),
    )
    return Source("sort", out.text(), "triton", meta=meta.text())


def _head(out: Writer, rows: Rows) -> None:
    """Where the rows are, and a key for each number."""
    out.line("row = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]")
    out.line("at = tl.arange(0, BLOCK)[None, :]")
    out.line(f"inside = row < {size_text(rows.count)}")
    out.line(f"exists = inside & (at < {rows.length})")
    write_row_indices(out, rows)
    out.line(f"first = {row_start('t0', rows.steps[0])}")
    out.line("value = tl.load(first + at, mask=exists, other=0)")
    out.line(f"key = sort_key(value, at, exists, {rows.descending})")


def _counting(out: Writer, rows: Rows) -> None:
    """The sorted position of each number is how many keys are smaller; no two are equal."""
    out.line("smaller = key[:, None, :] < key[:, :, None]")
    out.line("position = tl.sum(smaller.to(tl.int32), 2)")
    out.line(f"stored = exists & (position < {rows.stored})")
    write_results(out, rows, "position", ("value", "tl.broadcast_to(at, [ROWS, BLOCK]).to(tl.int64)"))


def _exchanging(out: Writer, rows: Rows) -> None:
    """Sorted keys hold the position that each number had."""
    mask = 0xFFFF if rows.dtype in _SHORT else 0xFFFFFFFF
    out.line(f"position = (tl.sort(key) & {mask}).to(tl.int32)")
    out.line(f"stored = inside & (at < {rows.stored})")
    # again from memory: the sign of a zero and the bits of a NaN are not in its rank
    out.line("found = tl.load(first + position, mask=stored, other=0)")
    write_results(out, rows, "at", ("found", "position.to(tl.int64)"))


def expected_order(dim: int, descending: bool, stored: int, *operands: Any) -> Expected:
    """The sorted numbers and their positions, which nothing rounds: of equal numbers the first comes first.

    Args:
        dim: along which rows lie.
        descending: whether the largest come first.
        stored: how many of each row are wanted.
        operands: the numbers, the sorted numbers, their positions, and sizes.
    """
    x: Tensor = operands[0]
    zero = torch.zeros(operands[1].shape, dtype=torch.float64, device=x.device)
    found = torch.sort(x, dim=dim, descending=descending, stable=True)
    results = {at: (order.narrow(dim, 0, stored), zero) for at, order in enumerate(found, 1)}
    if stored < x.shape[dim]:
        return Expected("aten.topk.default", (x, stored, dim, descending, True), {}, results)
    named = {"stable": True, "dim": dim, "descending": descending}
    return Expected("aten.sort.stable", (x,), named, results)
