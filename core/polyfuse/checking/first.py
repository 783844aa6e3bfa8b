"""The first launch of a kernel: one that raises is replaced, and the program goes on.

A kernel that was launched once is called directly from then on, and costs nothing more. One of dynamic sizes
stays behind a `try`, 0.1 microseconds for each launch: other sizes may be too many for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.base.errors import KernelLaunchError
from polyfuse.runtime.provisional import Provisional, is_recoverable

if TYPE_CHECKING:
    from polyfuse.checking.operands import Layout
    from polyfuse.ir.kernel import Kernel


class FirstLaunch(Provisional):
    """A kernel until its first launch has succeeded.

    Where the kernel overwrites what it reads, a checksum of those bytes is stored meanwhile: a kernel that
    raised after it had changed them cannot be run again by anybody.

    Args:
        kernel: what it was generated from, or what reads that from a file. Such a kernel ran in an earlier
            process, and no checksum is stored.
        synchronize: waits for the device. If it raises after the launch did, nothing can run there any more.
        replace: called with the error; returns what is called in the kernel's span from now on.
    """

    def __init__(
        self,
        kernel: Kernel | Callable[[], Kernel],
        launch: Callable[..., Any],
        synchronize: Callable[[], None],
        replace: Callable[[Exception], Callable[..., Any]],
    ) -> None:
        super().__init__(launch)
        self._kernel = kernel
        self._synchronize = synchronize
        self._replace = replace
        self._works = False

    @property
    def works(self) -> Callable[..., Any] | None:
        """The kernel, once a launch has succeeded."""
        return self.current or (self.launch if self._works else None)

    def __call__(self, *operands: Any) -> None:
        """Launch."""
        if self.current is not None:
            self.current(*operands)
            return
        kernel = self._kernel
        before = None if self._works or callable(kernel) else _sums(kernel, operands)
        try:
            self.launch(*operands)
        except Exception as error:
            if not is_replaceable(error, self._synchronize):
                raise
            replacement = self._replace(error)
            self.use(replacement)
            kernel = kernel() if callable(kernel) else kernel
            # the driver refused to start it, or its operands are as they were
            if not isinstance(error, KernelLaunchError) and not _equal(before, _sums(kernel, operands)):
                error.add_note(_DAMAGED)
                raise
            replacement(*operands)
            return
        if self._works:
            return
        self._works = True
        if not any(isinstance(operand, int) for operand in operands):
            self.use(self.launch)


_DAMAGED = (
    "The kernel overwrites what it reads, and had begun to when it failed, so that nothing else can compute "
    "it in this call; from the next call on, something else replaces it."
)


def is_replaceable(error: Exception, synchronize: Callable[[], None]) -> bool:
    """Whether something else may be launched after a launch raised. Some errors of a device stay (an illegal
    address, a failed assertion): whatever asks for it afterwards raises, and so does a recording, which may
    not wait for the device.
    """
    if not is_recoverable(error):
        return False
    try:
        synchronize()
    except Exception:
        return False
    return True


def _overwritten(kernel: Kernel, layout: Layout) -> list[int]:
    written = {
        span.block
        for arg, span in zip(kernel.args, layout.spans, strict=True)
        if span is not None and arg.kind != "in"
    }
    return [
        number
        for number, (arg, span) in enumerate(zip(kernel.args, layout.spans, strict=True))
        if span is not None and arg.kind != "out" and span.block in written
    ]


def _equal(before: list[Any] | None, after: list[Any]) -> bool:
    if before is None:
        return not after
    return all(bool(a == b) for a, b in zip(before, after, strict=True))


def _sums(kernel: Kernel, operands: Sequence[Any]) -> list[Any]:
    """A sum over the memory of each operand that is read and may be overwritten."""
    from polyfuse.checking.operands import layout_of, raw

    mine = operands[: len(kernel.args)]
    layout = layout_of(kernel, mine)
    out: list[Any] = []
    for number in [] if layout is None else _overwritten(kernel, layout):
        span = layout.spans[number] if layout is not None else None
        nbytes = 0 if span is None else span.nbytes
        words = raw(mine[number], nbytes // 8 * 8)
        aligned = words.storage_offset() % 8 == 0
        out.append((words.view(torch.int64) if aligned else words).sum())
        out.append(raw(mine[number], nbytes)[nbytes // 8 * 8 :].sum())
    return out
