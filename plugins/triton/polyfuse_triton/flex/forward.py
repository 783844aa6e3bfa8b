"""The forward of flexible attention as Triton text: each program owns a tile of queries."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse_cuda.flex.call import Written
from polyfuse_cuda.flex.problem import Array, Blocks, Problem
from polyfuse_triton.dtypes import triton_type
from polyfuse_triton.flex.text import KernelText
from polyfuse_triton.flex.tiles import Tiles


def forward_source(
    problem: Problem,
    tiles: Tiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    results: Sequence[Array],
    aligned: bool,
) -> Written:
    """Attention: `operands` are queries, keys and values, `results` the output, the logarithms of the sums of
    each query's exponentials, and its greatest score.
    """
    q, k, v = operands
    out, sums, *greatest = results
    kernel = KernelText(problem, tiles, (*operands, *results), lists)
    line = kernel.line

    def write() -> None:
        kernel.begin_queries()
        masks = kernel.begin_lanes()
        kernel.define_indices("m")
        line(f"qt = {kernel.tile(q, 'm64', 'ml', 'dc', (kernel.masks('m'), masks['dc']))}")
        line(f"acc = tl.zeros([MBLOCK, {kernel.values}], tl.float32)")
        line('top = tl.full([MBLOCK, 1], float("-inf"), tl.float32)')
        line("total = tl.zeros([MBLOCK, 1], tl.float32)")
        for scores, item in kernel.each_list("n"):
            key = kernel.shared(k, "n64")
            line(f"kt = {kernel.load(_transposed(k), key, 'dr', 'nl', (kernel.masks('n'), masks['dr']))}")
            line(f"s = {kernel.score_matmul()}")
            kernel.changed(scores, item.whole, False)
            line(f"most = tl.maximum(top, tl.max(x, 1, keep_dims=True) * {kernel.factor})")
            line('base = tl.where(most == float("-inf"), 0.0, most)')
            line(f"p = tl.exp2(x * {kernel.factor} - base)")
            line("share = tl.exp2(top - base)")
            line("total = total * share + tl.sum(p, 1, keep_dims=True)")
            value = kernel.shared(v, "n64")
            line(f"vt = {kernel.load(v, value, 'nt', 'vc', (kernel.masks('n', True), masks['vc']))}")
            kind = triton_type(problem.dtype)
            line(f"acc = tl.dot(p.to({kind}), vt, acc * share{kernel.precision})")
            line("top = most")
        line("whole = tl.where(total == 0.0, 1.0, total)")
        kernel.store(out, f"(acc / whole).to({triton_type(out.dtype)})", "m64", "ml", "vc", masks["vc"])
        kernel.store_row(sums, "top + tl.log2(whole)")
        for result in greatest:
            kernel.store_row(result, "top")

    return kernel.written(
        "flex_attention", write, kernel.grid(problem.queries, tiles.queries, False), aligned
    )


def _transposed(array: Array) -> Array:
    """A matrix with rows and columns exchanged."""
    return Array(array.name, array.dtype, (*array.stride[:2], array.stride[3], array.stride[2]))
