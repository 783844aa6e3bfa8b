"""Flexible attention (`flex_attention`, with score_mod and mask_mod) as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from polyfuse.flex.call import KEY_LISTS, QUERY_LISTS, FlexCall, Written
from polyfuse.flex.expected import FlexLaunch, expected_flex
from polyfuse.flex.lowering import FlexKernels, Gradients, flex_lowerings
from polyfuse.flex.problem import Array, Blocks, Problem
from polyfuse.plugin import TensorValue
from polyfuse_triton.dtypes import triton_type
from polyfuse_triton.flex.gradients import key_gradient_source, query_gradient_source
from polyfuse_triton.flex.text import KernelText
from polyfuse_triton.flex.tiles import Tiles, tiles_of
from polyfuse_triton.target import first_target
from polyfuse_triton.template import triton_template


class TritonKernels(FlexKernels):
    """A kernel for the forward, one for the gradients of queries, and one for those of keys and values."""

    def forward(self, call: FlexCall, problem: Problem, results: Sequence[TensorValue]) -> None:
        """Emit the forward's kernel."""
        operands = [call.array(v) for v in call.operands]
        lists = call.lists(KEY_LISTS)
        written = [call.array(v) for v in results]
        tiles = tiles_of("forward", problem, first_target(self.ctx.settings))
        launch = partial(FlexLaunch, problem, lists, False)
        self._emit(
            call,
            launch,
            lambda a: forward_source(problem, tiles, operands, lists, written, a),
            operands,
            results,
        )

    def backward(
        self, call: FlexCall, problem: Problem, given: Gradients
    ) -> tuple[TensorValue, TensorValue, TensorValue]:
        """Emit the kernels of the gradients."""
        operands = [call.array(v) for v in (*call.operands, given.grad, given.sums, given.common)]
        to_query, to_key, to_value = (self.ctx.stored(fake) for fake in given.results)
        lists, query_lists = call.lists(KEY_LISTS), call.lists(QUERY_LISTS)
        target = first_target(self.ctx.settings)
        tiles, key_tiles = (tiles_of(name, problem, target) for name in ("queries", "keys"))
        first, second, third = (call.array(v) for v in (to_query, to_key, to_value))
        self._emit(
            call,
            partial(FlexLaunch, problem, lists, False),
            lambda a: query_gradient_source(problem, tiles, operands, lists, first, a),
            operands,
            [to_query],
        )
        self._emit(
            call,
            partial(FlexLaunch, problem, query_lists, True),
            lambda a: key_gradient_source(problem, key_tiles, operands, query_lists, (second, third), a),
            operands,
            [to_key, to_value],
        )
        return to_query, to_key, to_value

    def _emit(
        self,
        call: FlexCall,
        launch: Callable[..., FlexLaunch],
        make: Callable[[bool], Written],
        operands: Sequence[Array],
        results: Sequence[TensorValue],
    ) -> None:
        """The call of a kernel in the graph; `launch` is what it computes, without its arguments."""
        written = make(True)
        names = (tuple(a.name for a in arrays) for arrays in (operands, map(call.array, results)))
        expected = partial(expected_flex, launch(written.arrays, written.sizes, *names))
        kernel = triton_template(
            written.source.name, lambda aligned: make(aligned).source, self.ctx.settings, expected
        )
        call.emit(kernel, written, results)


LOWERINGS = flex_lowerings(TritonKernels)


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
