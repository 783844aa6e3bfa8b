"""Series of launches of a host program as a table that one C function carries out (`prelude/binding.h`).

All sizes are known. What kernels of the series alone see lies in one block, at offsets that are computed
once. Other threads of Python run meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from polyfuse.runtime import cached_memory, keep_memory
from polyfuse.runtime.launching import SeriesPlan, profiler_flag
from polyfuse_cpp.bindings import KernelLibrary

_ALIGNMENT = 64
"""Of memory in the block, in bytes: as in pools of programs."""

_LARGEST = 4 << 20
"""Bytes of the largest block, which is held from the first launch to the last."""

_NUMBER = -1


def join_series(plan: SeriesPlan) -> Callable[[list[Any]], tuple[Any, ...]] | None:
    """A function that carries out a series; None where some kernel is not of this backend, or needs sizes."""
    libraries = {name: getattr(kernel, "__self__", None) for name, kernel in plan.kernels.items()}
    if plan.symbols or not all(isinstance(item, KernelLibrary) for item in libraries.values()):
        return None
    made = _Table(plan).made()
    return made if made is None else made.run


@dataclass(frozen=True)
class _Slot:
    """What a slot holds.

    Attributes:
        tensor: its number among what the C function is given.
        start: bytes from there on.
        layout: sizes, strides and elements from the start, and the type if that is another, where it is not
            the tensor itself.
    """

    tensor: int
    start: int = 0
    layout: tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype | None] | None = None


class _Table:
    """The state of writing one series. Of the tensors, the inputs come first, then the block, then those that
    are made."""

    def __init__(self, plan: SeriesPlan) -> None:
        self.plan = plan
        self.block = plan.inputs
        self.slots: dict[int, _Slot] = {slot: _Slot(slot) for slot in range(plan.inputs)}
        self.memory = _Memory()
        self.tensors: list[tuple[Any, ...]] = []
        self.launches: list[tuple[str, list[tuple[int, int]]]] = []

    def made(self) -> _Joined | None:
        """The series; None where its block were too large, or a size is not known."""
        try:
            for kind, *row in self.plan.rows:
                getattr(self, f"_{kind}")(*row)
        except ValueError:  # of int()
            return None
        if self.memory.size > _LARGEST:
            return None
        plan = self.plan
        library: KernelLibrary = plan.kernels[self.launches[0][0]].__self__  # type: ignore[attr-defined]
        results = tuple(self.slots[slot] for slot in plan.returns)
        words = self._words(library.share() if plan.alone else 0)
        return _Joined(plan, library, words, self.memory.size, tuple(self.tensors), results)

    def _words(self, share: int) -> ctypes.Array[ctypes.c_int64]:
        used = {tensor for _, pairs in self.launches for tensor, _ in pairs if tensor != _NUMBER}
        number = {tensor: i for i, tensor in enumerate(sorted(used))}
        # without memory of its own there is no block in the list
        shift = 0 if self.memory.size else 1
        words = [share, len(number), *(t - shift if t > self.block else t for t in number)]
        words += [max(len(pairs) for _, pairs in self.launches), len(self.launches)]
        for name, pairs in self.launches:
            kernel = self.plan.kernels[name]
            words += [kernel.__self__.direct(kernel), len(pairs)]  # type: ignore[attr-defined]
            words += [word for tensor, value in pairs for word in (number.get(tensor, _NUMBER), value)]
        return (ctypes.c_int64 * len(words))(*words)

    def _memory(self, slot: int, size: int | str) -> None:
        self.slots[slot] = _Slot(self.block, self.memory.take(slot, int(size)))

    def _tensor(self, slot: int, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> None:
        self.tensors.append((size, stride, dtype))
        self.slots[slot] = _Slot(self.block + len(self.tensors))

    def _view(self, slot: int, of: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        _, _, offset, dtype = self.slots[of].layout or ((), (), 0, None)
        self.slots[slot] = replace(self.slots[of], layout=(size, stride, offset, dtype))

    def _part(
        self,
        slot: int,
        of: int,
        offset: int | str,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        layout = (size, stride, int(offset), dtype)
        self.slots[slot] = _Slot(of, int(offset) * dtype.itemsize, layout)

    def _free(self, slot: int) -> None:
        self.memory.give(slot)

    def _launch(self, kernel: str, operands: tuple[int | str, ...]) -> None:
        pairs: list[tuple[int, int]] = []
        for operand in operands:
            if isinstance(operand, int):
                held = self.slots[operand]
                pairs.append((held.tensor, held.start))
            else:
                pairs.append((_NUMBER, int(operand)))
        self.launches.append((kernel, pairs))


class _Memory:
    """Offsets in the block: the lowest that is free."""

    def __init__(self) -> None:
        self.size = 0
        self._taken: dict[int, tuple[int, int]] = {}

    def take(self, slot: int, size: int) -> int:
        """So many bytes for a slot, until they are given back."""
        size = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        start = 0
        for first, last in sorted(self._taken.values()):
            if first - start >= size:
                break
            start = last
        self._taken[slot] = (start, start + size)
        self.size = max(self.size, start + size)
        return start

    def give(self, slot: int) -> None:
        """The memory of a slot is free, if it has some."""
        self._taken.pop(slot, None)


class _Joined:
    """A series that is carried out in one call."""

    def __init__(
        self,
        plan: SeriesPlan,
        library: KernelLibrary,
        words: ctypes.Array[ctypes.c_int64],
        block: int,
        tensors: tuple[tuple[Any, ...], ...],
        results: tuple[_Slot, ...],
    ) -> None:
        self._plan = plan
        self._words = words
        self._series = library.run_series()
        self._table = ctypes.addressof(words)
        self._block = block
        self._tensors = tensors
        shift = 0 if block else 1
        self._results = tuple(
            replace(slot, tensor=slot.tensor - shift) if slot.tensor > plan.inputs else slot
            for slot in results
        )
        self._flags, self._flag = profiler_flag() or ({"": False}, "")

    def run(self, args: list[Any]) -> tuple[Any, ...]:
        """From inputs to results; empties the list of these."""
        if self._flags[self._flag]:
            return self._plan.each(args)
        allocate, size, count = self._plan.allocate, self._block, len(args)
        if size:
            block = cached_memory(size)
            args.append(block)
        args += [allocate(*layout) for layout in self._tensors]
        if self._series(args, self._table):
            del args[count:]
            return self._plan.each(args)
        results = tuple([self._result(args, slot) for slot in self._results])
        args.clear()
        if size:
            keep_memory(block)
        return results

    def _result(self, args: list[Any], slot: _Slot) -> Any:
        tensor = args[slot.tensor]
        if slot.layout is None:
            return tensor
        size, stride, offset, dtype = slot.layout
        base = tensor if dtype is None else tensor.view(dtype)
        return self._plan.view(base, size, stride, offset)
