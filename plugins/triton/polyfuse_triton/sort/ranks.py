"""A few long rows: a number's sorted position is how many numbers of its row are before it, counted over all
pairs.

That is the square of what sorting by exchanges compares, but all of it at once on all multiprocessors, where
a library sorts a row with one thread block.
"""

from __future__ import annotations

from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.sort.rows import (
    Rows,
    arguments,
    row_start,
    size_text,
    write_head,
    write_results,
    write_row_indices,
)
from polyfuse_triton.tiling.plan import power_of_two

_PROGRAMS = 256
"""Programs that a row is spread over, about two for each multiprocessor of a large GPU."""
_LEAST, _MOST = 16, 128
"""Numbers of a program."""
_PAIRS = 2048
"""What a program compares at once: a count for each of 16 pairs is in the registers of a thread."""


def rank_source(rows: Rows, aligned: bool) -> Source:
    """The kernel whose programs find the sorted positions of some numbers of one row. Sizes are known."""
    count = rows.count
    assert isinstance(count, int)
    tile = max(_LEAST, min(_MOST, power_of_two(max(1, count * rows.length // _PROGRAMS))))
    parts, step = -(-rows.length // tile), _PAIRS // tile
    out = Writer()
    write_head(out, rows, "TILE", "STEP")
    with out.indented():
        out.line(f"row = tl.cast(tl.program_id(0) // {parts}, tl.int64)")
        write_row_indices(out, rows)
        out.line(f"first = {row_start('t0', rows.steps[0])}")
        out.line(f"begin = tl.program_id(0) % {parts} * TILE")
        out.line("at = begin + tl.arange(0, TILE)")
        out.line(f"exists = at < {rows.length}")
        out.line("value = tl.load(first + at, mask=exists, other=0)")
        out.line("before = tl.zeros([TILE, STEP], tl.int32)")
        if rows.dtype is DType.i64:
            _by_ranks(out, rows, max(tile, step))
        else:
            _by_keys(out, rows)
        out.line("position = tl.sum(before, 1)")
        out.line(f"stored = exists & (position < {rows.stored})")
        write_results(out, rows, "position", ("value", "at.to(tl.int64)"))
    meta = KernelMeta(
        args=arguments(rows, aligned),
        constexprs=(("TILE", tile), ("STEP", step)),
        num_warps=4,
        num_stages=1,
        grid=(f"{size_text(count)} * {parts}", 1, 1),
    )
    return Source("sort", out.text(), "triton", meta=meta.text())


def _by_keys(out: Writer, rows: Rows) -> None:
    """Count by keys that hold the positions, too, so that no two are equal."""
    out.line(f"key = sort_key(value, at, exists, {rows.descending})")
    others = f"sort_key(given, other_at, others, {rows.descending})"
    _count(out, rows, f"0, {rows.length}", others, "other[None, :] < key[:, None]")


def _by_ranks(out: Writer, rows: Rows, around: int) -> None:
    """Count by ranks alone. Equal numbers keep their order: those at earlier positions are before, those of
    later ones are not, and only `around` the program's own are positions compared.
    """
    out.line(f"key = sort_rank(value, exists, {rows.descending})")
    out.line("low = begin // STEP * STEP")
    out.line(f"high = tl.minimum(low + {around}, {rows.length})")
    others = f"sort_rank(given, others, {rows.descending})"
    _count(out, rows, "0, low", others, "other[None, :] <= key[:, None]")
    same = "(other[None, :] == key[:, None]) & (other_at[None, :] < at[:, None])"
    _count(out, rows, "low, high", others, f"(other[None, :] < key[:, None]) | ({same})")
    _count(out, rows, f"high, {rows.length}", others, "other[None, :] < key[:, None]")


def _count(out: Writer, rows: Rows, span: str, others: str, is_before: str) -> None:
    """Count numbers at the positions `span`, from a multiple of `STEP` on, that are before the own ones."""
    out.line(f"for start in range({span}, STEP):")
    with out.indented():
        out.line("other_at = start + tl.arange(0, STEP)")
        out.line(f"others = other_at < {rows.length}")
        out.line("given = tl.load(first + other_at, mask=others, other=0)")
        out.line(f"other = {others}")
        out.line(f"before += ({is_before}).to(tl.int32)")
