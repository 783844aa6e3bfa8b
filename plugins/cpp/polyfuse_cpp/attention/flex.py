"""Flexible attention in tiles: which calls are computed so, and the calls of their kernels. PyTorch has no
gradients of it on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.flex.call import KEY_LISTS, FlexCall
from polyfuse.flex.expected import FlexLaunch, expected_flex
from polyfuse.flex.lowering import FlexKernels, Gradients, flex_lowerings
from polyfuse.flex.problem import Problem
from polyfuse.plugin import Expected, Launchable, Source, TensorValue
from polyfuse_cpp.attention.built import BuiltKernel
from polyfuse_cpp.attention.flex_text import flex_source
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.isa import choose_isa, has_pair_products

_WIDTHS: Final = range(16, 257)
_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_BLOCK: Final = 32
"""Rows and keys that are laid out together, of which blocks of a mask are multiples."""


def takes(settings: Settings, node: Any) -> bool:
    """Whether a traced call has a kernel."""
    query, key, value = (node.args[k].meta["val"] for k in range(3))
    blocks = node.args[4]
    return bool(
        settings.numerics == "fast"
        and settings.gemm != "library"
        and query.dtype in _TYPES
        and query.dtype is key.dtype is value.dtype
        and isinstance(query.shape[3], int)
        and query.shape[3] in _WIDTHS
        and value.shape[3] == query.shape[3]
        and all(isinstance(size, int) and size % _BLOCK == 0 for size in blocks[-3:-1])
        and all(_has_lines(operand) for operand in (query, key, value))
        and has_pair_products(choose_isa(str(settings.plugin_option("cpp", "isa", "") or "")))
    )


def _has_lines(operand: torch.Tensor) -> bool:
    """Whether numbers of a head lie side by side."""
    return bool(operand.dim() == 4 and operand.stride(3) == 1)


class FlexKernel(BuiltKernel):
    """A call of a kernel: a `polyfuse.plugin.PackableKernel`.

    Args:
        written: its text.
        launch: what it computes.
        settings: which say how it is compiled.
    """

    def __init__(self, written: Source, launch: FlexLaunch, settings: Settings) -> None:
        self._written, self._launch = written, launch
        self._ready: Launchable | None = None
        super().__init__("flex_attention", settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return FlexKernel, (self._written, self._launch, self.settings)

    def __call__(self, *operands: Any) -> None:
        """Compute the results: tensors, then numbers."""
        if self._ready is None:
            self._ready = self.launchable()
        self._ready(*operands)

    def source(self, backend: CppBackend) -> Source:
        """Its text."""
        return self._written

    def expected(self, *operands: Any) -> Expected | None:
        """What a call has to give."""
        launch = self._launch
        return expected_flex(launch, *operands[: len(launch.arrays) + len(launch.sizes)])

    def by_library(self, *operands: Any) -> None:
        """Put what is expected into the results."""
        found = self.expected(*operands)
        for at, (values, _) in ({} if found is None else found.results).items():
            operands[at].copy_(values)


class CppFlexKernels(FlexKernels):
    """A kernel for the forward."""

    def forward(self, call: FlexCall, problem: Problem, results: Sequence[TensorValue]) -> None:
        """Emit the kernel, once it is built.

        Raises:
            UnsupportedError: there is none for these sizes, types or functions, or no compiler builds it.
        """
        settings = self.ctx.settings
        try:
            backend = CppBackend(settings)
        except BackendUnavailableError as error:
            raise UnsupportedError(error.cause, error.fix) from error
        operands = [call.array(value) for value in call.operands]
        lists, made = call.lists(KEY_LISTS), [call.array(value) for value in results]
        if any(array.stride[3] != 1 for array in (*operands, made[0])):
            raise UnsupportedError("numbers of a head that do not lie side by side have no kernel")
        if problem.depth != problem.values or problem.depth not in _WIDTHS:
            raise UnsupportedError(f"heads of {problem.depth} and values of {problem.values} have no kernel")
        written, symbols = flex_source(problem, operands, lists, made, backend.isa)
        read, wrote = (tuple(array.name for array in arrays) for arrays in (operands, made))
        launch = FlexLaunch(problem, lists, False, written.arrays, symbols, read, wrote)
        kernel = FlexKernel(written.source, launch, settings)
        kernel.check_built("the kernel of flexible attention")
        call.emit(kernel, written, results)

    def backward(
        self, call: FlexCall, problem: Problem, given: Gradients
    ) -> tuple[TensorValue, TensorValue, TensorValue]:
        """Refuse it.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("gradients of flexible attention have no kernel on the CPU")


LOWERINGS: Final = flex_lowerings(CppFlexKernels, takes)
