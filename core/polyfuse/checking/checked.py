"""What a program calls in place of a kernel that is to be checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polyfuse.base.log import get_logger
from polyfuse.checking import tally
from polyfuse.checking.familiar import FamiliarLaunches, FamiliarSizes
from polyfuse.checking.first import is_replaceable
from polyfuse.checking.operands import Layout, layout_of, put_back
from polyfuse.checking.records import Records
from polyfuse.checking.tally import Subject
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.provisional import Provisional, is_out_of_memory

if TYPE_CHECKING:
    from polyfuse.checking.launch import CheckResult

_log = get_logger("checking")


class CheckedKernel(Provisional):
    """A kernel whose launches run beside the interpreter: the first one of each kind, or all.

    The kernel is launched on copies of its operands. What it made is put into the operands only once it is
    known to be right, so that a kernel that writes to wrong elements does no harm.

    Args:
        subject: what is launched.
        launch: the kernel.
        records: where agreement is remembered.
        every: whether all launches are checked.
        synchronize: waits for the device.
        differs: called for a kernel that is wrong, with the operands and its results; returns what is
            called instead of it from now on.
        replace: called with the error of a kernel that raised; returns the same.
        by_sizes: whether a launch with the sizes of one that agreed is known, wherever its operands are.
    """

    def __init__(
        self,
        subject: Subject,
        launch: Callable[..., Any],
        records: Records,
        every: bool,
        synchronize: Callable[[], None],
        differs: Callable[[CheckResult, Sequence[Any], Layout], Callable[..., Any]],
        replace: Callable[[Exception], Callable[..., Any]],
        by_sizes: bool = False,
    ) -> None:
        super().__init__(launch)
        self.subject = subject
        self._records = records
        self._every = every
        self._synchronize = synchronize
        self._differs = differs
        self._replace = replace
        self._lock = threading.Lock()
        self._seen = False
        # kernels of sizes that vary stay behind this one
        familiar = FamiliarSizes if by_sizes else FamiliarLaunches
        has_sizes = any(arg.kind == "size" for arg in subject.kernel.args)
        self._familiar = familiar(subject.kernel) if has_sizes else None
        self._is_quick = False

    @property
    def pending(self) -> bool:
        """Whether no launch was seen yet."""
        return not self._seen and self.current is None

    def __call__(self, *operands: Any) -> None:
        """Launch."""
        if self.current is not None:
            self.current(*operands)
            return
        if self._familiar is not None and not tally.forgets() and self._familiar(operands):
            if not self._is_quick and self._put is not None:
                self._put(self._familiar.quick(self.launch, self))
                self._is_quick = True
            self.launch(*operands)
            return
        device = self.subject.kernel.device.partition(":")[0]
        if device_of(device).is_recording():
            # it ran before, and was checked then
            self.launch(*operands)
            return
        layout = layout_of(self.subject.kernel, operands)
        if layout is None:
            tally.skip(self.subject.name, "its operands have no memory")
            self._seen = True
            self.launch(*operands)
            return
        variant = _variant(layout)
        if not self._every and self._agreed(variant):
            self._seen = True
            if self._familiar is None:
                self.use(self.launch)
            else:
                self._familiar.remember(operands, layout)
            self.launch(*operands)
            return
        with self._lock:
            self._checked(operands, layout, variant)

    def _agreed(self, variant: str) -> bool:
        if tally.forgets():
            return tally.seen(self.subject.key, variant)
        return self._records.agreed(self.subject.key, variant)

    def _checked(self, operands: Sequence[Any], layout: Layout, variant: str) -> None:
        if self.current is not None:  # another thread was first
            self.current(*operands)
            return
        # the interpreter: a process in which all that it launches agreed before does without
        from polyfuse.checking.launch import CheckResult, LaunchFailed, check_launch, right_results

        try:
            found = check_launch(
                self.subject.kernel,
                self.launch,
                operands,
                layout,
                self._synchronize,
            )
        except LaunchFailed as failure:
            error = failure.error
            if not is_replaceable(error, self._synchronize):
                raise error from None
            replacement = self._replace(error)
            self.use(replacement)
            replacement(*operands)  # the kernel had copies: the operands are as they were
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            found = CheckResult(unknown="its operands do not fit into memory twice")
        self._seen = True
        if found.unknown:
            tally.skip(self.subject.name, found.unknown)
            _log.info("kernel %s is not checked: %s", self.subject.name, found.unknown)
            self.launch(*operands)
            return
        tally.checked(self.subject.key, variant)
        if not found.problem:
            assert found.found is not None
            put_back(found.found, layout, operands, self.subject.kernel)
            if not self._every:
                self._records.agree(self.subject.key, variant, self.subject.name)
            return
        replacement = self._differs(found, operands, layout)
        self.use(replacement)
        if not right_results(self.subject.kernel, operands, layout):
            replacement(*operands)


def _variant(layout: Layout) -> str:
    """What generated code may treat differently: kinds of sizes, alignment, memory that operands share."""
    sizes = "".join(_kind(value) for _, value in layout.sizes)
    aligned = "".join("a" if n >= 16 else str(n) for n in layout.alignments)
    large = "L" if any(nbytes >= 1 << 31 for _, nbytes in layout.blocks) else ""
    return " ".join(filter(None, (sizes, aligned, large, layout.aliases)))


def _kind(size: int) -> str:
    """A letter for sizes that a generator may have code of its own for."""
    if size in (0, 1):
        return str(size)
    if size >= 1 << 31:
        return "L"
    return "m" if size % 16 == 0 else "n"
