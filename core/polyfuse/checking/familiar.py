"""Launches of a kernel of sizes that vary which are like one that agreed, known by numbers alone: to look at
operands takes longer than small kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from polyfuse.checking import tally
from polyfuse.runtime.provisional import Launch

if TYPE_CHECKING:
    from polyfuse.checking.operands import Layout
    from polyfuse.ir.kernel import Kernel

_ALIGNED = 64
"""Bytes up to which a variant tells how an address is aligned."""

_MOST = 1024

_Numbers: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class FamiliarSizes:
    """Sizes of launches that agreed. Where operands lie is not asked: a kernel without sizes is not looked at
    again either once it agreed.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._is_size = [arg.kind == "size" for arg in kernel.args]
        self._at = [at for at, is_size in enumerate(self._is_size) if is_size]
        self._known: set[Any] = set()

    def remember(self, operands: Sequence[Any], layout: Layout) -> None:
        """Take further launches with the sizes among these operands for known ones."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known.add(self._sizes(operands))

    def __call__(self, operands: Sequence[Any]) -> bool:
        """Whether a launch is like one that agreed."""
        return self._sizes(operands) in self._known

    def quick(self, launch: Launch, other: Launch) -> Launch:
        """What a program may call from the first known launch on."""
        sizes = [f"a{at}" for at in self._at]
        key = sizes[0] if len(sizes) == 1 else f"({', '.join(sizes)})"
        return _quick(len(self._is_size), key, self._known, launch, other)

    def _sizes(self, operands: Sequence[Any]) -> Any:
        if len(self._at) == 1:
            return operands[self._at[0]]
        return tuple([operands[at] for at in self._at])


class FamiliarLaunches:
    """Launches that agreed, by their sizes, how their operands are aligned and which of them are one."""

    def __init__(self, kernel: Kernel) -> None:
        self._is_size = [arg.kind == "size" for arg in kernel.args]
        self._size_at = [at for at, is_size in enumerate(self._is_size) if is_size]
        self._tensor_at = [at for at, is_size in enumerate(self._is_size) if not is_size]
        self._bytes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._familiar: set[_Numbers] = set()
        # their numbers follow from sizes and addresses, which mostly are those of an earlier call
        self._repeated: set[tuple[int, ...]] = set()

    def remember(self, operands: Sequence[Any], layout: Layout) -> None:
        """Take further launches with such operands for known ones."""
        if len(self._familiar) >= _MOST:
            self._familiar.clear()
            self._repeated.clear()
            self._bytes.clear()
        sizes = tuple([operands[at] for at in self._size_at])
        self._bytes[sizes] = tuple([span.nbytes for span in layout.spans if span is not None])
        found = self._numbers(operands)
        if found is not None:
            self._familiar.add(found)

    def __call__(self, operands: Sequence[Any]) -> bool:
        """Whether a launch is like one that agreed."""
        if not self._familiar:
            return False
        pairs = zip(self._is_size, operands, strict=False)
        numbers = tuple([one if is_size else one.data_ptr() for is_size, one in pairs])
        if numbers in self._repeated:
            return True
        if self._numbers(operands) not in self._familiar:
            return False
        if len(self._repeated) >= _MOST:
            self._repeated.clear()
        self._repeated.add(numbers)
        return True

    def quick(self, launch: Launch, other: Launch) -> Launch:
        """What a program may call from the first known launch on."""
        parts = [f"a{at}" if size else f"a{at}.data_ptr()" for at, size in enumerate(self._is_size)]
        return _quick(len(parts), f"({', '.join(parts)},)", self._repeated, launch, other)

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


def _quick(count: int, key: str, known: Collection[Any], launch: Launch, other: Launch) -> Launch:
    """A function that launches a kernel if its operands make a known key, and calls another if not. It has as
    many parameters as the kernel: with any number of them it takes half as long again.
    """
    given = ", ".join(f"a{at}" for at in range(count))
    text = f"""def launch_known({given}):
    if {key} in known and not forgets[0]:
        launch({given})
    else:
        other({given})
"""
    namespace: dict[str, Any] = {
        "known": known,
        "launch": launch,
        "other": other,
        "forgets": tally.FORGETS,
    }
    exec(text, namespace)
    found: Callable[..., Any] = namespace["launch_known"]
    return found
