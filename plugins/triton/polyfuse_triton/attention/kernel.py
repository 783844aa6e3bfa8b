"""The kernel of attention with few queries, as Triton text.

A program has a part of the keys of one head, and all queries that share it, so that keys and values are read
once. The programs of all parts are a cluster, whose last one joins what they found. Exponentials are of base
two.
"""

from __future__ import annotations

import math

from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.dtypes import pointer_type, triton_type
from polyfuse_triton.tiling.plan import power_of_two

LOG2E = math.log2(math.e)
SHORTEST = 16
"""Rows that a matrix instruction takes."""


def few_queries_source(call: FewQueries, tiles: Tiles, aligned: bool) -> Source:
    """The kernel: its arguments are queries, keys, values, the bias if there is one, the result, and with
    several parts memory for (parts, batch, heads, queries, values) sums, and as many pairs of the greatest
    score and the sum of exponentials, both in f32.
    """
    out = Writer()
    bias = ["bias"] if call.bias else []
    parts = ["sums", "facts"] if tiles.parts > 1 else []
    names = ["q", "k", "v", *bias, "out", *parts]
    constants = (
        ("ROWS", power_of_two(max(SHORTEST, call.rows))),
        ("KEYS", tiles.keys),
        ("DEPTH", power_of_two(max(SHORTEST, call.depth))),
        ("VALUES", power_of_two(max(SHORTEST, call.values))),
    )
    out.line("@triton.jit")
    given = ", ".join((*names, *(f"{name}: tl.constexpr" for name, _ in constants)))
    out.line(f"def {Source.SYMBOL}({given}):")
    with out.indented():
        _write_head(out, call, tiles)
        _write_part(out, call, tiles)
        _write_loop(out, call, tiles)
        _write_results(out, call, tiles)
    types = dict.fromkeys(("q", "k", "v", "out"), call.dtype) | {"bias": call.bias_dtype}
    args = []
    for name in names:
        dtype = types.get(name)
        args.append(MetaArg(name, "ptr", "*fp32" if dtype is None else pointer_type(dtype), aligned))
    meta = KernelMeta(
        args=tuple(args),
        constexprs=constants,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        grid=(call.pairs, 1, 1),
        cluster=tiles.parts,
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
    out.line("d = tl.arange(0, DEPTH)")
    out.line("e = tl.arange(0, VALUES)")
    out.line("n = tl.arange(0, KEYS)")


def _write_part(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    """The queries, and where the program's keys begin and end: without those at both ends that no query sees,
    for which the bias is asked for first, so that both are waited for together.
    """
    length = part_length(call, tiles)
    out.line(f"begin = part * {length}")
    out.line(f"end = tl.minimum(begin + {length}, {call.keys})")
    if call.bias:
        out.line(f"beside = {_at('bias', (('b64', call.bias[0]),))}")
    out.line(f"keys = {_at('k', (('b64', call.key[0]), ('kh64', call.key[1])))}")
    out.line(f"values = {_at('v', (('b64', call.value[0]), ('kh64', call.value[1])))}")
    if call.skips:
        _write_seen(out, call, power_of_two(length))
    start = _at("q", (("b64", call.query[0]),))
    index = _sum(
        (("h[:, None]", call.query[1]), ("m[:, None]", call.query[2]), ("d[None, :]", call.query[3]))
    )
    mask = _both("exists[:, None]", _columns("d[None, :]", call.depth))
    out.line(f"qt = tl.load({start} + ({index}){_masked(mask)})")
    if call.skips:
        out.line("last = tl.max(tl.where(seen, all + 1, 0), 0)")
        out.line(f"first = tl.min(tl.where(seen, all, {power_of_two(length)}), 0)")
        out.line("end = begin + last")
        out.line(f"begin = begin + first // {tiles.keys} * {tiles.keys}")


def _write_seen(out: Writer, call: FewQueries, block: int) -> None:
    """Which keys of the part are seen."""
    out.line(f"all = tl.arange(0, {block})")
    first = _sum((("(begin + all)", call.bias[3]),))
    out.line(f'seen = tl.load(beside + {first}, mask=begin + all < end, other=float("-inf"))')
    out.line('seen = seen != float("-inf")')


def _write_loop(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    """The walk over tiles of keys."""
    # keys of a tile beyond the last one that is seen exist, too, and their bias says that none counts
    inside = "" if call.keys % (tiles.parts * tiles.keys) == 0 else "inside"
    out.line("acc = tl.zeros([ROWS, VALUES], tl.float32)")
    out.line('top = tl.full([ROWS], float("-inf"), tl.float32)')
    # added up behind the loop: warps have different keys, and would wait for each other
    out.line("totals = tl.zeros([ROWS, KEYS], tl.float32)")
    out.line("for n0 in range(begin, end, KEYS):")
    with out.indented():
        out.line("n64 = tl.cast(n0, tl.int64)")
        if inside:
            out.line("inside = n0 + n < end")
        for name, base, size, step, column in (
            ("kt", "keys", call.depth, call.key, "d[None, :]"),
            ("vt", "values", call.values, call.value, "e[None, :]"),
        ):
            mask = _both("inside[:, None]" if inside else "", _columns(column, size))
            index = _sum((("n[:, None]", step[2]), (column, step[3])))
            out.line(f"{name} = tl.load({base} + n64 * {step[2]} + ({index}){_masked(mask)})")
        out.line(f"x = tl.dot(qt, tl.trans(kt)) * {call.scale * LOG2E!r}")
        if call.bias:
            _write_bias(out, call, inside)
        elif inside:
            out.line('x = tl.where(inside[None, :], x, float("-inf"))')
        out.line("most = tl.maximum(top, tl.max(x, 1))")
        out.line('base = tl.where(most == float("-inf"), 0.0, most)')
        out.line("p = tl.exp2(x - base[:, None])")
        out.line("share = tl.exp2(top - base)[:, None]")
        out.line("totals = totals * share + p")
        out.line(f"acc = tl.dot(p.to({triton_type(call.dtype)}), vt, acc * share)")
        out.line("top = most")
    out.line("total = tl.sum(totals, 1)")


def _write_bias(out: Writer, call: FewQueries, inside: str) -> None:
    """Add what is added to scores; keys beyond the end do not count."""
    _, head, query, key = call.bias
    rows = _sum((("h[:, None]", head), ("m[:, None]", query)))
    if rows == "0":
        index = f"(n0 + n) * {key}" if key != 1 else "n0 + n"
        masked = f', mask={inside}, other=float("-inf")' if inside else ""
        out.line(f"more = tl.load(beside + ({index}){masked})")
        out.line(f"x += (more.to(tl.float32) * {LOG2E!r})[None, :]")
        return
    mask = _both("exists[:, None]", f"{inside}[None, :]" if inside else "")
    index = f"{rows} + (n0 + n[None, :]) * {key}"
    text = f'tl.load(beside + ({index}), mask={mask}, other=float("-inf"))'
    out.line(f"x += {text}.to(tl.float32) * {LOG2E!r}")


def _write_results(out: Writer, call: FewQueries, tiles: Tiles) -> None:
    mask = _both("exists[:, None]", _columns("e[None, :]", call.values))
    if tiles.parts == 1:
        _write_quotient(out, call, mask)
        return
    count = call.batch * call.heads * call.queries
    out.line(f"at = (b * {call.heads} + h) * {call.queries} + m")
    out.line(f"own = part * {count} + at")
    out.line(f"tl.store(sums + own[:, None] * {call.values} + e[None, :], acc, mask={mask})")
    out.line("tl.store(facts + own * 2, top, mask=exists)")
    out.line("tl.store(facts + own * 2 + 1, total, mask=exists)")
    out.line("wait_for_cluster()")
    out.line(f"if part == {tiles.parts - 1}:")
    with out.indented():
        # from the cache that all multiprocessors share
        fresh = ', cache_modifier=".cg"'
        tops = [f"top{part}" for part in range(tiles.parts)]
        for part, top in enumerate(tops):
            out.line(f"{top} = tl.load(facts + ({part * count} + at) * 2, mask=exists, other=0.0{fresh})")
        out.line(f"most = {tops[0]}")
        for top in tops[1:]:
            out.line(f"most = tl.maximum(most, {top})")
        out.line('base = tl.where(most == float("-inf"), 0.0, most)')
        out.line("total = tl.zeros_like(total)")
        out.line("acc = tl.zeros_like(acc)")
        for part, top in enumerate(tops):
            own = f"({part * count} + at)"
            index = f"{own}[:, None] * {call.values} + e[None, :]"
            out.line(f"weight = tl.exp2({top} - base)")
            out.line(f"total += weight * tl.load(facts + {own} * 2 + 1, mask=exists, other=0.0{fresh})")
            out.line(f"acc += weight[:, None] * tl.load(sums + {index}, mask={mask}, other=0.0{fresh})")
        _write_quotient(out, call, mask)


def _write_quotient(out: Writer, call: FewQueries, mask: str) -> None:
    """The result; without keys that count it is zero."""
    start = _at("out", (("b64", call.out[0]),))
    index = _sum((("h[:, None]", call.out[1]), ("m[:, None]", call.out[2]), ("e[None, :]", call.out[3])))
    out.line("whole = tl.where(total == 0.0, 1.0, total)")
    text = f"(acc / whole[:, None]).to({triton_type(call.dtype)})"
    out.line(f"tl.store({start} + ({index}), {text}, mask={mask})")


def part_length(call: FewQueries, tiles: Tiles) -> int:
    """Keys of a part: whole tiles."""
    return -(-call.keys // (tiles.parts * tiles.keys)) * tiles.keys


def _columns(name: str, size: int) -> str:
    """The mask of columns that exist; none where all do."""
    return "" if power_of_two(max(SHORTEST, size)) == size else f"{name} < {size}"


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
