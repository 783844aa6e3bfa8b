"""The gradients of flexible attention as Triton text: those of queries, whose programs own a tile of queries
each, and those of keys and values, whose programs own a tile of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.flex.call import Written
from polyfuse.flex.problem import GRADIENT, Array, Blocks, Problem
from polyfuse_triton.dtypes import triton_type
from polyfuse_triton.flex.scores import Scores
from polyfuse_triton.flex.text import KernelText, size_text
from polyfuse_triton.flex.tiles import Tiles


def query_gradient_source(
    problem: Problem,
    tiles: Tiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    result: Array,
    aligned: bool,
) -> Written:
    """The gradient of the queries. `operands`: queries, keys, values, the gradient of the output, logarithms
    of sums, and what each query's gradients have in common.
    """
    q, k, v, g, sums, common = operands
    kernel = KernelText(problem, tiles, (*operands, result), lists)
    line, kind = kernel.line, triton_type(problem.dtype)

    def write() -> None:
        kernel.begin_queries()
        masks = kernel.begin_lanes()
        kernel.define_indices("m")
        _load_rows(kernel, masks, q, g, sums, common)
        line(f"acc = tl.zeros([MBLOCK, {kernel.depth}], tl.float32)")
        for scores, item in kernel.each_list("n"):
            key, value = kernel.shared(k, "n64"), kernel.shared(v, "n64")
            transposed = kernel.masks("n", True)
            line(f"kn = {kernel.load(k, key, 'nt', 'dc', (transposed, masks['dc']))}")
            line(f"vn = {kernel.load(v, value, 'nt', 'vc', (transposed, masks['vc']))}")
            line("kt = tl.trans(kn)")
            line("vt = tl.trans(vn)")
            _gradients(kernel, scores, item.whole, False)
            line(f"acc = tl.dot(ds.to({kind}), kn, acc{kernel.precision})")
        text = f"(acc * {problem.scale!r}).to({triton_type(result.dtype)})"
        kernel.store(result, text, "m64", "ml", "dc", masks["dc"])

    grid = kernel.grid(problem.queries, tiles.queries, False)
    return kernel.written("flex_attention_queries", write, grid, aligned)


def key_gradient_source(
    problem: Problem,
    tiles: Tiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    results: Sequence[Array],
    aligned: bool,
) -> Written:
    """The gradients of keys and values; the lists are of blocks of queries for each block of keys."""
    q, k, v, g, sums, common = operands
    to_keys, to_values = results
    learned = [item.array for item in problem.added]
    kernel = KernelText(problem, tiles, (*operands, *results, *learned), lists, "nm")
    line, kind, p = kernel.line, triton_type(problem.dtype), problem

    def write() -> None:
        masks = _begin_keys(kernel, k, v)
        line(f"dk = tl.zeros([NBLOCK, {kernel.depth}], tl.float32)")
        line(f"dv = tl.zeros([NBLOCK, {kernel.values}], tl.float32)")
        line(f"group = {size_text(p.heads)} // {size_text(p.key_heads)}")
        line(f"for j in range(0, {size_text(p.batch)} // {size_text(p.key_batch)} * group):")
        with kernel.out.indented():
            line("h64 = kh64 * group + j % group")
            line("b64 = kb64 + j // group")
            line("h = h64.to(tl.int32)")
            line("b = b64.to(tl.int32)")
            for scores, item in kernel.each_list("m"):
                _load_rows(kernel, masks, q, g, sums, common)
                _gradients(kernel, scores, item.whole, True)
                for added in p.added:
                    scores.add(added, "keep" if kernel.counted(item.whole, True) else "")
                line(f"dv = tl.dot(p.to({kind}), gt, dv{kernel.precision})")
                line(f"dk = tl.dot(ds.to({kind}), qt, dk{kernel.precision})")
        _store_keys(kernel, to_keys, f"dk * {p.scale!r}", "dc", masks["dc"])
        _store_keys(kernel, to_values, "dv", "vc", masks["vc"])

    grid = kernel.grid(p.keys, tiles.keys, True)
    return kernel.written("flex_attention_keys", write, grid, aligned)


def _begin_keys(kernel: KernelText, k: Array, v: Array) -> dict[str, str]:
    """Define which keys and values a program owns, and load them; give the masks of the last dimension."""
    p, line = kernel.problem, kernel.line
    line("program = tl.program_id(0)")
    line(f"n0 = (program % {kernel.counts('NBLOCK', p.keys)} * NBLOCK).to(tl.int32)")
    line(f"z = program // {kernel.counts('NBLOCK', p.keys)}")
    line(f"kh64 = tl.cast(z % {size_text(p.key_heads)}, tl.int64)")
    line(f"kb64 = tl.cast(z // {size_text(p.key_heads)}, tl.int64)")
    masks = kernel.begin_lanes()
    kernel.define_indices("n")
    line(f"row = tl.cast(n0 // {p.key_block}, tl.int64)")
    rows = kernel.masks("n", True)
    key, value = kernel.shared(k, "n64"), kernel.shared(v, "n64")
    line(f"kn = {kernel.load(k, key, 'nt', 'dc', (rows, masks['dc']))}")
    line(f"vn = {kernel.load(v, value, 'nt', 'vc', (rows, masks['vc']))}")
    return masks


def _store_keys(kernel: KernelText, array: Array, text: str, columns: str, mask: str) -> None:
    """Store the gradient of a program's keys, or of its values."""
    offset = f"nt * {size_text(array.stride[2])} + {columns} * {size_text(array.stride[3])}"
    masks = " & ".join(m for m in (kernel.masks("n", True), mask) if m)
    given = f", mask={masks}" if masks else ""
    first = kernel.shared(array, "n64")
    kernel.line(f"tl.store({first} + ({offset}), ({text}).to({triton_type(array.dtype)}){given})")


def _gradients(kernel: KernelText, scores: Scores, whole: bool, by_keys: bool) -> None:
    """Weights in `p`, and gradients of the scores before they were changed in `ds`."""
    problem, line = kernel.problem, kernel.line
    assert problem.gradient is not None
    line(f"s = {kernel.score_matmul()}")
    kernel.changed(scores, whole, by_keys)
    line(f"p = tl.exp2(x * {kernel.factor} - base)")
    operands = "gt, vt" if kernel.order == "mn" else "vn, tl.trans(gt)"
    line(f"dp = tl.dot({operands}{kernel.precision})")
    line("d = p * (dp - common)")
    scores.given(GRADIENT, "d")
    line(f"ds = {scores.value(problem.gradient)}")
    if kernel.counted(whole, by_keys):
        line("ds = tl.where(keep, ds, 0.0)")


def _load_rows(
    kernel: KernelText, masks: dict[str, str], q: Array, g: Array, sums: Array, common: Array
) -> None:
    """Queries with all that belongs to them."""
    mask, rows = kernel.masks("m"), kernel.masks("m", True)
    given = f", mask={mask}, other=0.0" if mask else ""
    kernel.line(f"qt = {kernel.tile(q, 'm64', 'mt', 'dc', (rows, masks['dc']))}")
    kernel.line(f"gt = {kernel.tile(g, 'm64', 'mt', 'vc', (rows, masks['vc']))}")
    for name, array in (("base", sums), ("common", common)):
        first = kernel.at(array, "b64", "h64", "m64")
        kernel.line(f"{name} = tl.load({first} + ml * {size_text(array.stride[2])}{given})")
    kernel.line('base = tl.where(base == float("-inf"), 0.0, base)')
