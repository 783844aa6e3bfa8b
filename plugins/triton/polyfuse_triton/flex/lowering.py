"""Flexible attention (`flex_attention`, with score_mod and mask_mod) as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings
from polyfuse.plugin import TensorValue
from polyfuse_cuda.flex.call import KEY_LISTS, QUERY_LISTS, FlexCall, Written
from polyfuse_cuda.flex.lowering import FlexKernels, Gradients, flex_lowerings
from polyfuse_cuda.flex.problem import Problem
from polyfuse_triton.flex.forward import forward_source
from polyfuse_triton.flex.gradients import key_gradient_source, query_gradient_source
from polyfuse_triton.flex.tiles import tiles_of
from polyfuse_triton.target import Target, known_target, targets_of
from polyfuse_triton.template import triton_template


class TritonKernels(FlexKernels):
    """A kernel for the forward, one for the gradients of queries, and one for those of keys and values."""

    def forward(self, call: FlexCall, problem: Problem, results: Sequence[TensorValue]) -> None:
        """Emit the forward's kernel."""
        operands = [call.array(v) for v in call.operands]
        lists = call.lists(KEY_LISTS)
        written = [call.array(v) for v in results]
        tiles = tiles_of("forward", problem, _target(self.ctx.settings))
        self._emit(call, lambda a: forward_source(problem, tiles, operands, lists, written, a), results)

    def backward(
        self, call: FlexCall, problem: Problem, given: Gradients
    ) -> tuple[TensorValue, TensorValue, TensorValue]:
        """Emit the kernels of the gradients."""
        operands = [call.array(v) for v in (*call.operands, given.grad, given.sums, given.common)]
        to_query, to_key, to_value = (self.ctx.stored(fake) for fake in given.results)
        lists, query_lists = call.lists(KEY_LISTS), call.lists(QUERY_LISTS)
        target = _target(self.ctx.settings)
        tiles, key_tiles = (tiles_of(name, problem, target) for name in ("queries", "keys"))
        first, second, third = (call.array(v) for v in (to_query, to_key, to_value))
        self._emit(
            call,
            lambda a: query_gradient_source(problem, tiles, operands, lists, first, a),
            [to_query],
        )
        self._emit(
            call,
            lambda a: key_gradient_source(problem, key_tiles, operands, query_lists, (second, third), a),
            [to_key, to_value],
        )
        return to_query, to_key, to_value

    def _emit(self, call: FlexCall, make: Callable[[bool], Written], results: Sequence[TensorValue]) -> None:
        """The call of a kernel in the graph."""
        written = make(True)
        kernel = triton_template(written.source.name, lambda aligned: make(aligned).source, self.ctx.settings)
        call.emit(kernel, written, results)


def _target(settings: Settings) -> Target:
    """What kernels are compiled for; a large chip where there is none."""
    try:
        return targets_of(settings)[0]
    except BackendUnavailableError:
        return known_target("sm_90")


LOWERINGS = flex_lowerings(TritonKernels)
