"""What a program calls in place of a kernel that is to be checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from polyfuse.base.log import get_logger
from polyfuse.checking import tally
from polyfuse.checking.first import is_replaceable
from polyfuse.checking.operands import Layout, layout_of, put_back
from polyfuse.checking.records import Records
from polyfuse.checking.tally import Subject
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.provisional import Launch, Provisional, is_out_of_memory

if TYPE_CHECKING:
    from polyfuse.checking.launch import CheckResult

_log = get_logger("checking")

_ALIGNED = 64
"""Bytes up to which a variant tells how an address is aligned."""

_MOST_FAMILIAR = 1024

_Numbers: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


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
    ) -> None:
        super().__init__(launch)
        self.subject = subject
        self._records = records
        self._every = every
        self._synchronize = synchronize
        self._differs = differs
        self._replace = replace
        self._lock = threading.Lock()
        self._sizes = any(arg.kind == "size" for arg in subject.kernel.args)
        self._seen = False
        # kernels of sizes that vary stay behind this one, and to look at operands takes longer than small
        # kernels do: launches like those that agreed are known by numbers alone
        self._bytes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._familiar: set[_Numbers] = set()
        # their numbers follow from sizes and addresses, which mostly are those of an earlier call
        self._repeated: set[tuple[int, ...]] = set()
        kinds = [arg.kind for arg in subject.kernel.args]
        self._is_size = [kind == "size" for kind in kinds]
        self._size_at = [at for at, kind in enumerate(kinds) if kind == "size"]
        self._tensor_at = [at for at, kind in enumerate(kinds) if kind != "size"]
        self._quick = _quick(self._is_size, self._repeated, launch, self) if self._sizes else None

    @property
    def pending(self) -> bool:
        """Whether no launch was seen yet."""
        return not self._seen and self.current is None

    def __call__(self, *operands: Any) -> None:
        """Launch."""
        if self.current is not None:
            self.current(*operands)
            return
        if self._familiar and not tally.forgets() and self._is_familiar(operands):
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
            if not self._sizes:
                self.use(self.launch)
            else:
                self._remember(operands, layout)
            self.launch(*operands)
            return
        with self._lock:
            self._checked(operands, layout, variant)

    def _remember(self, operands: Sequence[Any], layout: Layout) -> None:
        """Take further launches with such operands for known ones."""
        if len(self._familiar) >= _MOST_FAMILIAR:
            self._familiar.clear()
            self._repeated.clear()
            self._bytes.clear()
        sizes = tuple([operands[at] for at in self._size_at])
        self._bytes[sizes] = tuple([span.nbytes for span in layout.spans if span is not None])
        found = self._numbers(operands)
        if found is not None:
            self._familiar.add(found)

    def _is_familiar(self, operands: Sequence[Any]) -> bool:
        """Whether a launch is like one that agreed."""
        pairs = zip(self._is_size, operands, strict=False)
        numbers = tuple([one if is_size else one.data_ptr() for is_size, one in pairs])
        if numbers in self._repeated:
            return True
        if self._numbers(operands) not in self._familiar:
            return False
        if self._quick is not None and self._put is not None:
            self._put(self._quick)
            self._quick = None
        if len(self._repeated) >= _MOST_FAMILIAR:
            self._repeated.clear()
        self._repeated.add(numbers)
        return True

    def _numbers(self, operands: Sequence[Any]) -> _Numbers | None:
        """The sizes of a launch, how its operands are aligned and which of them are one: its variant follows
        from these. None where parts of them are the same memory, or their sizes are new.
        """
        sizes = tuple([operands[at] for at in self._size_at])
        nbytes = self._bytes.get(sizes)
        if nbytes is None:
            return None
        addresses = [operands[at].data_ptr() for at in self._tensor_at]
        ranges: dict[int, int] = {}
        for start, size in zip(addresses, nbytes, strict=True):
            ranges[start] = max(size, ranges.get(start, 0))
        end = 0
        for start in sorted(ranges):
            if start < end:
                return None
            end = start + ranges[start]
        same = () if len(ranges) == len(addresses) else tuple([addresses.index(one) for one in addresses])
        return sizes, tuple([address % _ALIGNED for address in addresses]), same

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


def _quick(
    is_size: Sequence[bool], known: Collection[tuple[int, ...]], launch: Launch, other: Launch
) -> Launch:
    """A function that launches a kernel if its sizes and addresses are known ones, and calls another if not.
    It has as many parameters as the kernel: with any number of them it takes half as long again.
    """
    names = [f"a{at}" for at in range(len(is_size))]
    parts = [name if size else f"{name}.data_ptr()" for name, size in zip(names, is_size, strict=True)]
    given = ", ".join(names)
    text = f"""def launch_known({given}):
    if ({", ".join(parts)},) in known and not forgets():
        launch({given})
    else:
        other({given})
"""
    namespace: dict[str, Any] = {
        "known": known,
        "launch": launch,
        "other": other,
        "forgets": tally.forgets,
    }
    exec(text, namespace)
    found: Launch = namespace["launch_known"]
    return found


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
