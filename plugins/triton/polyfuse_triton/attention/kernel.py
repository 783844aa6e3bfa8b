"""The kernel of attention with few queries, as Triton text.

A program has a part of the keys of one head, and all queries that share it, so that keys and values are read
once. Where there are several parts it leaves sums of its own, weighed by the greatest score that it met, and
whoever reads the result joins them. Exponentials are of base two.
"""

from __future__ import annotations

import math

from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.dtypes import pointer_type, triton_type
from polyfuse_triton.tiling.plan import power_of_two

__all__ = ["few_queries_source"]

_LOG2E = math.log2(math.e)
_SHORTEST = 16
"""Rows that a matrix instruction takes."""


def few_queries_source(call: FewQueries, tiles: Tiles, aligned: bool) -> Source:
    """The kernel: its arguments are queries, keys, values, the bias if there is one, and the result. With
    several parts the last is two: (parts, batch, heads, queries, values) of sums, and as many pairs of the
    greatest score and the sum of exponentials, both in f32.
    """
    out = Writer()
    names = [
        "q",
        "k",
        "v",
        *(["bias"] if call.bias else []),
        *(["sums", "facts"] if tiles.parts > 1 else ["out"]),
    ]
    constants = (("ROWS", power_of_two(max(_SHORTEST, call.rows))), ("KEYS", tiles.keys))
    out.line("@triton.jit")
    out.line(f"def {Source.SYMBOL}({', '.join(names)}, ROWS: tl.constexpr, KEYS: tl.constexpr):")
    with out.indented():
        _write_head(out, call, tiles)
        _write_part(out, call, tiles)
        _write_loop(out, call, tiles)
        _write_results(out, call, tiles)
    types = {"q": call.dtype, "k": call.dtype, "v": call.dtype, "bias": call.bias_dtype, "out": call.dtype}
    args = []
    for name in names:
        dtype = types.get(name)
        args.append(MetaArg(name, "ptr", "*fp32" if dtype is None else pointer_type(dtype), aligned))
    meta = KernelMeta(
        args=tuple(args),
        constexprs=constants,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        grid=(call.pairs * tiles.parts, 1, 1),
    )
    return Source("few_queries", out.text(), "triton", meta=meta.text())


def _write_head(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    """Which keys and queries a program has."""
    out.line("program = tl.program_id(0)")
    out.line(f"part = program % {tiles.parts}")
    out.line(f"pair = program // {tiles.parts}")
    out.line(f"kh = pair % {call.key_heads}")
    out.line(f"b = pair // {call.key_heads}")
    out.line("b64 = b.to(tl.int64)")
    out.line("kh64 = kh.to(tl.int64)")
    out.line("row = tl.arange(0, ROWS)")
    out.line(f"exists = row < {call.rows}")
    if call.queries == 1:
        out.line(f"h = kh * {call.group} + row")
        out.line("m = tl.zeros_like(row)")
    else:
        out.line(f"h = kh * {call.group} + row // {call.queries}")
        out.line(f"m = row % {call.queries}")
    out.line("n = tl.arange(0, KEYS)")
    for name, size in (("d", call.depth), ("e", call.values)):
        out.line(f"{name} = tl.arange(0, {power_of_two(max(_SHORTEST, size))})")
    mask = _both("exists[:, None]", _columns("d", call.depth))
    start = _at("q", (("b64", call.query[0]),))
    offset = _sum(
        (("h[:, None]", call.query[1]), ("m[:, None]", call.query[2]), ("d[None, :]", call.query[3]))
    )
    out.line(f"qt = tl.load({start} + ({offset}){_masked(mask)})")


def _write_part(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    """Where the program's keys begin and end: without those at both ends that no query sees."""
    length = part_length(call, tiles)
    out.line(f"begin = part * {length}")
    out.line(f"end = tl.minimum(begin + {length}, {call.keys})")
    if call.bias:
        out.line(f"beside = {_at('bias', (('b64', call.bias[0]),))}")
    if not call.skips:
        return
    block = power_of_two(length)
    out.line(f"all = tl.arange(0, {block})")
    out.line("there = begin + all < end")
    first = _sum((("(begin + all)", call.bias[3]),))
    out.line(f'seen = tl.load(beside + {first}, mask=there, other=float("-inf")) != float("-inf")')
    out.line("last = tl.max(tl.where(seen, all + 1, 0), 0)")
    out.line(f"first = tl.min(tl.where(seen, all, {block}), 0)")
    out.line("end = begin + last")
    out.line("begin = begin + first // KEYS * KEYS")


def _write_loop(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    """The walk over tiles of keys."""
    whole = not call.skips and call.keys % (tiles.parts * tiles.keys) == 0
    inside = "" if whole else "inside"
    out.line(f"acc = tl.zeros([ROWS, {power_of_two(max(_SHORTEST, call.values))}], tl.float32)")
    out.line('top = tl.full([ROWS], float("-inf"), tl.float32)')
    out.line("total = tl.zeros([ROWS], tl.float32)")
    out.line(f"keys = {_at('k', (('b64', call.key[0]), ('kh64', call.key[1])))}")
    out.line(f"values = {_at('v', (('b64', call.value[0]), ('kh64', call.value[1])))}")
    out.line("for n0 in range(begin, end, KEYS):")
    with out.indented():
        out.line("n64 = tl.cast(n0, tl.int64)")
        if inside:
            out.line("inside = n0 + n < end")
        for name, base, size, step, column in (
            ("kt", "keys", call.depth, call.key, "d"),
            ("vt", "values", call.values, call.value, "e"),
        ):
            mask = _both("inside[:, None]" if inside else "", _columns(column, size))
            offset = _sum((("n[:, None]", step[2]), (f"{column}[None, :]", step[3])))
            out.line(f"{name} = tl.load({base} + n64 * {step[2]} + ({offset}){_masked(mask)})")
        out.line(f"x = tl.dot(qt, tl.trans(kt)) * {call.scale * _LOG2E!r}")
        if call.bias:
            _write_bias(out, call, inside)
        elif inside:
            out.line('x = tl.where(inside[None, :], x, float("-inf"))')
        out.line("most = tl.maximum(top, tl.max(x, 1))")
        out.line('base = tl.where(most == float("-inf"), 0.0, most)')
        out.line("p = tl.exp2(x - base[:, None])")
        out.line("share = tl.exp2(top - base)")
        out.line("total = total * share + tl.sum(p, 1)")
        out.line(f"acc = tl.dot(p.to({triton_type(call.dtype)}), vt, acc * share[:, None])")
        out.line("top = most")


def _write_bias(out: Writer, call: FewQueries, inside: str) -> None:
    """Add what is added to scores; keys beyond the end do not count."""
    _, head, query, key = call.bias
    rows = _sum((("h[:, None]", head), ("m[:, None]", query)))
    columns = f"n0 * {key} + n[None, :] * {key}" if key != 1 else "n0 + n[None, :]"
    mask = "inside[None, :]" if inside else ""
    if rows != "0":
        mask = _both("exists[:, None]", mask)
        columns = f"{rows} + {columns}"
    given = f', mask={mask}, other=float("-inf")' if mask else ""
    out.line(f"x += tl.load(beside + ({columns}){given}).to(tl.float32) * {_LOG2E!r}")


def _write_results(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    mask = _both("exists[:, None]", _columns("e", call.values))
    if tiles.parts == 1:
        start = _at("out", (("b64", call.out[0]),))
        offset = _sum((("h[:, None]", call.out[1]), ("m[:, None]", call.out[2]), ("e[None, :]", call.out[3])))
        out.line("whole = tl.where(total == 0.0, 1.0, total)")
        text = f"(acc / whole[:, None]).to({triton_type(call.dtype)})"
        out.line(f"tl.store({start} + ({offset}), {text}, mask={mask})")
        return
    out.line(f"at = ((part * {call.batch} + b) * {call.heads} + h) * {call.queries} + m")
    out.line(f"tl.store(sums + at[:, None] * {call.values} + e[None, :], acc, mask={mask})")
    out.line("tl.store(facts + at * 2, top, mask=exists)")
    out.line("tl.store(facts + at * 2 + 1, total, mask=exists)")


def part_length(call: FewQueries, tiles: Tiles) -> int:
    """Keys of a part: whole tiles."""
    return -(-call.keys // (tiles.parts * tiles.keys)) * tiles.keys


def _columns(name: str, size: int) -> str:
    """The mask of columns that exist; none where all do."""
    return "" if power_of_two(max(_SHORTEST, size)) == size else f"{name}[None, :] < {size}"


def _both(*masks: str) -> str:
    return " & ".join(f"({m})" for m in masks if m)


def _masked(mask: str) -> str:
    return f", mask={mask}, other=0.0" if mask else ""


def _at(name: str, terms: tuple[tuple[str, int], ...]) -> str:
    """The address of the first of some elements."""
    given = _sum(terms)
    return name if given == "0" else f"{name} + ({given})"


def _sum(terms: tuple[tuple[str, int], ...]) -> str:
    """Indices times their strides."""
    found = [index if step == 1 else f"{index} * {step}" for index, step in terms if step]
    return " + ".join(found) or "0"
