"""The first launch of a kernel: one that raises is replaced, and the program goes on.

A kernel that was launched once is called directly from then on, and costs nothing more. One of dynamic sizes
stays behind a `try`, 0.1 microseconds for each launch: other sizes may be too many for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyfuse.base.errors import KernelLaunchError, is_from_model
from polyfuse.checking.operands import Layout, layout_of, raw
from polyfuse.ir.kernel import Kernel

__all__ = ["FirstLaunch", "is_harmless", "is_recoverable"]

_Replace = Callable[[Exception], Callable[..., Any]]


class FirstLaunch:
    """A kernel until its first launch has succeeded.

    Where the kernel overwrites what it reads, a sum of those bytes is kept meanwhile: a kernel that raised
    after it had changed them cannot be run again by anybody.

    Args:
        kernel: what it was generated from, or what reads that from a file. Such a kernel ran in an earlier
            process, and no sum is kept.
        replace: told of the failure; returns what is called in the kernel's place from now on.
    """

    def __init__(
        self, kernel: Kernel | Callable[[], Kernel], launch: Callable[..., Any], replace: _Replace
    ) -> None:
        self.launch = launch
        self._kernel = kernel
        self._replace = replace
        self._put: Callable[[Callable[..., Any]], None] | None = None
        self._settled: Callable[..., Any] | None = None
        self._works = False

    def attach(self, put: Callable[[Callable[..., Any]], None]) -> None:
        """Be given what puts another function in this one's place in the program."""
        self._put = put

    def __call__(self, *operands: Any) -> None:
        """Launch."""
        if self._settled is not None:
            self._settled(*operands)
            return
        kernel = self._kernel
        before = _sums(kernel, operands) if not self._works and isinstance(kernel, Kernel) else None
        try:
            self.launch(*operands)
        except Exception as error:
            if not is_recoverable(error):
                raise
            replacement = self._replace(error)
            self._settle(replacement)
            kernel = kernel if isinstance(kernel, Kernel) else kernel()
            if not is_harmless(error) and not _equal(before, _sums(kernel, operands)):
                error.add_note(_DAMAGED)
                raise
            replacement(*operands)
            return
        if self._works:
            return
        self._works = True
        if not any(isinstance(operand, int) for operand in operands):
            self._settle(self.launch)

    def _settle(self, function: Callable[..., Any]) -> None:
        self._settled = function
        if self._put is not None:
            self._put(function)


_DAMAGED = (
    "The kernel overwrites what it reads, and had begun to when it failed, so that nothing else can compute "
    "it in this call; from the next call on, something else takes its place."
)


def is_recoverable(error: Exception) -> bool:
    """Whether another backend may do better: not where the model is at fault, or memory is used up."""
    return not is_from_model(error) and not isinstance(error, (torch.OutOfMemoryError, MemoryError))


def is_harmless(error: Exception) -> bool:
    """Whether a kernel that raised this was not started."""
    return isinstance(error, KernelLaunchError)


def _overwritten(kernel: Kernel, layout: Layout) -> list[int]:
    written = {
        place.block
        for arg, place in zip(kernel.args, layout.places, strict=True)
        if place is not None and arg.kind != "in"
    }
    return [
        number
        for number, (arg, place) in enumerate(zip(kernel.args, layout.places, strict=True))
        if place is not None and arg.kind != "out" and place.block in written
    ]


def _equal(before: list[Any] | None, after: list[Any]) -> bool:
    if before is None:
        return not after
    return all(bool(a == b) for a, b in zip(before, after, strict=True))


def _sums(kernel: Kernel, operands: Sequence[Any]) -> list[Any]:
    """A sum over the memory of each operand that is read and may be overwritten."""
    mine = operands[: len(kernel.args)]
    layout = layout_of(kernel, mine)
    out: list[Any] = []
    for number in [] if layout is None else _overwritten(kernel, layout):
        place = layout.places[number] if layout is not None else None
        nbytes = 0 if place is None else place.nbytes
        words = raw(mine[number], nbytes // 8 * 8)
        aligned = words.storage_offset() % 8 == 0
        out.append((words.view(torch.int64) if aligned else words).sum())
        out.append(raw(mine[number], nbytes)[nbytes // 8 * 8 :].sum())
    return out
