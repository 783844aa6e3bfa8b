"""Flexible attention's forward and backward as kernels for Hopper, built or taken from the cache. What it
cannot do is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyfuse.base.digest import digest
from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.files import built_folder
from polyfuse.base.folders import writable_root
from polyfuse.base.settings import Settings
from polyfuse.flex.call import KEY_LISTS, QUERY_LISTS, FlexCall, Written
from polyfuse.flex.expected import FlexLaunch, expected_flex
from polyfuse.flex.lowering import FlexKernels, Gradients, flex_lowerings
from polyfuse.flex.problem import Array, Problem
from polyfuse.ir.expr import apply, const
from polyfuse.ir.types import DType
from polyfuse.plugin import Expected, Launchable, LoweringContext, Source, TensorValue
from polyfuse.symbolic import axis
from polyfuse_cuda.template import ALIGNMENT, ComparedTemplate
from polyfuse_cutlass.attention.backward import Totals, backward_source
from polyfuse_cutlass.attention.forward import forward_source
from polyfuse_cutlass.attention.text import is_copied
from polyfuse_cutlass.attention.tiles import backward_tiles_of
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.launch.launcher import load_unit
from polyfuse_cutlass.target import is_hopper

_LOADED: dict[Path, Launchable] = {}


class Loader:
    """Builds and loads one kernel.

    Args:
        source: its text.
        backend: says how it is compiled.
        copied: how many of its arguments, the first ones, the copy engine reads: their addresses are
            multiples of 16 bytes.
    """

    def __init__(self, source: Source, backend: CutlassBackend, copied: int) -> None:
        self._source = source
        self._root = writable_root(backend.settings)
        self._options = backend.worker_options()
        self._copied = copied

    def __call__(self, aligned: bool) -> Launchable:
        """A launcher on the current device, of aligned arguments or of any."""
        launch = self._load()
        return launch if aligned else _Moved(launch, self._copied)

    @property
    def key(self) -> str:
        """A digest of the text, and of how it is compiled."""
        facts = " ".join(f"{name}={value}" for name, value in sorted(self._options.items()))
        return digest(self._source.key, facts)

    def _load(self) -> Launchable:
        folder = self._root / "templates" / self.key
        if folder not in _LOADED:
            built_folder(folder, lambda made: build_in_worker([self._source], made, self._options))
            _LOADED[folder] = load_unit(folder)[self._source.key]
        return _LOADED[folder]


class _Moved:
    """Calls a kernel with copies of those operands that lie at odd addresses."""

    def __init__(self, launch: Launchable, copied: int) -> None:
        self._launch = launch
        self._copied = copied

    def __call__(self, *arguments: Any) -> None:
        moved = [t if t.data_ptr() % ALIGNMENT == 0 else _moved(t) for t in arguments[: self._copied]]
        self._launch(*moved, *arguments[self._copied :])


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides: of all that lies between its first and its last element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    copy = tensor.as_strided((span,), (1,)).clone()
    return copy.as_strided(tensor.shape, tensor.stride())


class HopperKernels(FlexKernels):
    """One kernel for the forward, and one for all gradients."""

    def __init__(self, ctx: LoweringContext, device: str, learned: Collection[int] | None = None) -> None:
        super().__init__(ctx, device, learned)
        if learned is not None and ctx.settings.deterministic == "on":
            raise UnsupportedError("gradients of queries are added up in any order")
        if learned:
            raise UnsupportedError("gradients of tensors that the score's function reads are not added up")
        self._backend = _backend(ctx.settings, device)

    def forward(self, call: FlexCall, problem: Problem, results: Sequence[TensorValue]) -> None:
        """Emit the forward's kernel."""
        operands = [call.array(v) for v in call.operands]
        lists, made = call.lists(KEY_LISTS), [call.array(v) for v in results]
        written = forward_source(problem, operands, lists, made)
        launch = FlexLaunch(
            problem, lists, False, written.arrays, written.sizes, _names(operands), _names(made)
        )
        kernel = _kernel(written, self._backend, len(operands), partial(expected_flex, launch))
        call.emit(kernel, written, results)

    def backward(
        self, call: FlexCall, problem: Problem, given: Gradients
    ) -> tuple[TensorValue, TensorValue, TensorValue]:
        """Emit the backward's kernel; gradients of queries are totals in f32 until they are read."""
        ctx = self.ctx
        tiles = backward_tiles_of(problem)
        grad = _in_rows(ctx, given.grad)
        operands = [call.array(v) for v in (*call.operands, grad, given.sums, given.common)]
        layout = Totals(problem, tiles)
        totals = ctx.temporary(DType.f32, grad.device, layout.size)
        totals = ctx.lazy(totals, const(0.0, DType.f32))
        to_query, *others = given.results
        to_key, to_value = (ctx.stored(fake) for fake in others)
        lists, made = call.lists(QUERY_LISTS), [call.array(v) for v in (to_key, to_value)]
        written = backward_source(problem, tiles, operands, lists, call.array(totals), made)
        offset = layout.offset(axis("m", problem.queries), axis("d", problem.depth))
        launch = FlexLaunch(
            problem,
            lists,
            True,
            written.arrays,
            written.sizes,
            _names(operands),
            _names(made),
            (call.array(totals).name, offset),
        )
        # the copy engine reads the first four
        kernel = _kernel(written, self._backend, 4, partial(expected_flex, launch))
        call.emit(kernel, written, (to_key, to_value), added=[totals])
        b, h, m, d = ctx.axes(ctx.template(to_query))
        total = apply("mul", totals.at((b, h, layout.offset(m, d))), const(problem.scale, DType.f32))
        return ctx.lazy(to_query, total), to_key, to_value


def _in_rows(ctx: LoweringContext, value: TensorValue) -> TensorValue:
    """A value in rows, as the copy engine fetches it: a copy of the gradient of a sum, which repeats."""
    if is_copied(ctx.realize(value).stride):
        return value
    assert value.dtype is not None
    rows = ctx.temporary(value.dtype, value.device, value.size)
    return ctx.lazy(rows, value.at(ctx.axes(rows)))


def _names(arrays: Sequence[Array]) -> tuple[str, ...]:
    return tuple(array.name for array in arrays)


def _kernel(
    written: Written, backend: CutlassBackend, copied: int, expected: Callable[..., Expected]
) -> ComparedTemplate:
    load = Loader(written.source, backend, copied)
    return ComparedTemplate(written.source.name, load, "cuda_cutlass", lambda: load.key, expected)


def _backend(settings: Settings, device: str) -> CutlassBackend:
    """What builds the kernel; refused where it would not run, or nothing compiles it."""
    try:
        backend = CutlassBackend(settings)
    except BackendUnavailableError as error:
        raise UnsupportedError(error.cause, error.fix) from error
    if not is_hopper(device):
        raise UnsupportedError("only a Hopper has what this kernel is made of")
    return backend


LOWERINGS = flex_lowerings(HopperKernels)
