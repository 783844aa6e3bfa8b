"""Programs whose last inputs follow from the parameters of a model, and what computes these. Values that
kernels read from end to end at each call lie in memory of large pages.
"""

from __future__ import annotations

import operator
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from polyfuse.base.errors import InputLayoutError
from polyfuse.base.process import ForkedLock
from polyfuse.runtime.frozen.entries import MOST_MODELS, Entry, forget, stamp_of
from polyfuse.runtime.frozen.looks import can_look, look_at
from polyfuse.runtime.workspace import HAS_LARGE_PAGES, LARGE_PAGE, large_block
from polyfuse.torch_compat.ops import resolve
from polyfuse.torch_compat.swaps import ContentsRef
from polyfuse.torch_compat.tracing.pytree import flatten, unflatten

_CONSTANT_BYTES = 1 << 20
"""Larger constants are not copied into an entry of the graph cache."""

_Values = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]

_Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]] | None


@dataclass(frozen=True)
class FrozenOperand:
    """Instead of an argument: a parameter, a constant, or the result of an earlier step."""

    number: int


@dataclass(frozen=True)
class FrozenStep:
    """A call of an operator.

    Attributes:
        op: its name such as `aten.mul.Tensor`; `getitem` for one of several results; `laid_out` with a size
            and a stride for the same numbers in that layout.
        args, kwargs: `FrozenOperand` and plain values, in tuples and lists, too.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, made: Sequence[Any]) -> Any:
        """Its result, from what was made before."""
        call = _OWN.get(self.op) or resolve(self.op)
        leaves, nesting = flatten((self.args, dict(self.kwargs)))
        filled = [made[leaf.number] if isinstance(leaf, FrozenOperand) else leaf for leaf in leaves]
        args, kwargs = unflatten(filled, nesting)
        return call(*args, **kwargs)

    def takes(self) -> set[int]:
        """Numbers of what it needs."""
        leaves, _ = flatten((self.args, dict(self.kwargs)))
        return {leaf.number for leaf in leaves if isinstance(leaf, FrozenOperand)}

    def renumbered(self, numbers: Mapping[int, int]) -> FrozenStep:
        """The step with operands of other numbers."""
        leaves, nesting = flatten((self.args, dict(self.kwargs)))
        moved = [FrozenOperand(numbers[x.number]) if isinstance(x, FrozenOperand) else x for x in leaves]
        return FrozenStep(self.op, *unflatten(moved, nesting))


@dataclass(frozen=True)
class PackedInputs:
    """What a program takes as inputs behind those of its graph: what operators make of some of these, once
    for all calls.

    Attributes:
        steps: the calls, whose `FrozenOperand`s are positions among the inputs of the graph.
        layouts: size and stride of each result; None: it is no tensor with strides.
        unread: positions of inputs of the graph that the program does not take.
    """

    steps: tuple[FrozenStep, ...]
    layouts: tuple[_Layout, ...]
    unread: frozenset[int]


@dataclass(frozen=True, eq=False)
class FrozenValues:
    """Computes values from the parameters of a model: the same for all numbers in them, so that it can be
    stored without them.

    Attributes:
        sources: positions of the parameters among the inputs of a graph.
        constants: tensors that the graph holds.
        steps: calls, in order; a number of `FrozenOperand` counts parameters, then constants, then these.
        results: which of these numbers are the values.
        layouts: size and stride of each value; None: it is no tensor with strides.
        folded: how many operations went into the weights of a convolution.
    """

    sources: tuple[int, ...] = ()
    constants: tuple[torch.Tensor, ...] = ()
    steps: tuple[FrozenStep, ...] = ()
    results: tuple[int, ...] = ()
    layouts: tuple[_Layout, ...] = ()
    folded: int = 0

    def __call__(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """The values, in the layouts that the graph was compiled for, on large pages where there are some."""
        with torch.inference_mode(False), torch.no_grad():
            values = [
                value if layout is None else laid_out(value, *layout)
                for value, layout in zip(self.compute(*given), self.layouts, strict=True)
            ]
            return on_large_pages(values, (*given, *self.constants))

    def compute(self, *given: Any) -> list[torch.Tensor]:
        """The values, laid out as operators leave them. What no later step takes is released."""
        made: list[Any] = [*given, *self.constants]
        first = len(made)
        last = {number: first + k for k, step in enumerate(self.steps) for number in step.takes()}
        needed = {*self.results, *range(first)}
        for number, step in enumerate(self.steps, first):
            made.append(step.run(made))
            for taken in step.takes():
                if last[taken] == number and taken not in needed:
                    made[taken] = None
        return [made[number] for number in self.results]

    def packed(self, inputs: PackedInputs, count: int) -> FrozenValues:
        """What computes the last inputs of a program that takes packed ones.

        Args:
            count: of the graph's inputs that calls pass; those behind them are these values.
        """
        taken = {position for step in inputs.steps for position in step.takes()}
        further = sorted(p for p in taken if p < count and p not in self.sources)
        sources = (*self.sources, *further)
        first = len(sources) + len(self.constants)
        moved = [*range(len(self.sources)), *range(len(sources), first + len(self.steps))]
        numbers = dict(enumerate(moved))
        steps = [step.renumbered(numbers) for step in self.steps]
        at = {position: number for number, position in enumerate(sources)}
        results: list[int] = []
        layouts: list[_Layout] = []
        for position, (result, layout) in enumerate(zip(self.results, self.layouts, strict=True), count):
            at[position] = numbers[result]
            if position in taken and layout is not None:
                at[position] = first + len(steps)
                steps.append(FrozenStep("laid_out", (FrozenOperand(numbers[result]), *layout), {}))
            if position not in inputs.unread:
                results.append(at[position])
                layouts.append(layout)
        results += range(first + len(steps), first + len(steps) + len(inputs.steps))
        steps += [step.renumbered(at) for step in inputs.steps]
        return replace(
            self,
            sources=sources,
            steps=tuple(steps),
            results=tuple(results),
            layouts=(*layouts, *inputs.layouts),
        )


def laid_out(value: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """The same numbers with these strides: the tensor itself where it has them, or a copy."""
    if tuple(value.stride()) == stride:
        return value
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).copy_(value)


_OWN: Mapping[str, Callable[..., Any]] = {"getitem": operator.getitem, "laid_out": laid_out}


class FrozenProgram:
    """Called as the program is, but without its last inputs.

    Args:
        program: takes one list, which it empties.
        values: computes the last inputs from the parameters.
        sources: positions of the parameters.
    """

    _boxed_call = True

    def __init__(
        self, program: Callable[[list[Any]], Sequence[Any]], values: _Values, sources: Sequence[int]
    ) -> None:
        self.program = program
        self._compute = values
        self._sources = tuple(sources)
        self._known: OrderedDict[tuple[int, ...], Entry] = OrderedDict()
        self._latest: Callable[[], Entry | None] = _none
        self._lock = ForkedLock()

    @property
    def cache_record(self) -> Any:
        """What the graph cache stores: the program's record, with how the values are computed."""
        record: Any = getattr(self.program, "cache_record", "it falls back to eager")
        if isinstance(record, str) or not isinstance(self._compute, FrozenValues):
            return record
        constants = self._compute.constants
        if any(type(constant) is not torch.Tensor or constant.requires_grad for constant in constants):
            return "its parameters meet a constant that is no plain tensor"
        if sum(constant.nbytes for constant in constants) > _CONSTANT_BYTES:
            return "its constants are large"
        return replace(record, frozen=self._compute)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        entry = self._latest()
        if entry is None or entry.look is None or not entry.look(args):
            entry = self._found(args)
        args.extend(entry.value)
        return self.program(args)

    def _found(self, args: list[Any]) -> Entry:
        """The values for these arguments, found by the identity of each parameter, or made."""
        given = [args[i] for i in self._sources]
        entry = self._known.get(tuple(map(id, given)))
        if entry is None or not entry.is_current(given):
            return self._renewed(given)
        if entry.look is None and can_look():
            with self._lock:  # not while it is renewed
                now = entry.stamp
                if entry.is_current(given):
                    found = self._sources, given, now.addresses, now.versions
                    entry.look = look_at(*found, with_layouts=bool(now.layouts))
        self._latest = weakref.ref(entry)
        return entry

    def _renewed(self, given: Sequence[torch.Tensor]) -> Entry:
        key = tuple(map(id, given))
        with self._lock:
            entry = self._known.get(key)
            if entry is not None and entry.is_current(given):
                return entry
            now = stamp_of(given)
            values = self._compute(given)
            if entry is not None and entry.is_of(given):
                for old, new in zip(entry.value, values, strict=True):
                    if old.dtype != new.dtype or old.shape != new.shape:
                        raise InputLayoutError(
                            "parameters have another type or size than the model was compiled with",
                            "call torch._dynamo.reset() behind such changes, which torch did not notice",
                        )
                entry.look = None
                # at the same addresses, which recordings of the program may hold
                entry.value = [
                    old.copy_(new) if old.layout is torch.strided else new
                    for old, new in zip(entry.value, values, strict=True)
                ]
                entry.stamp = now
                return entry
            gone = partial(forget, weakref.ref(self), key)
            entry = self._known[key] = Entry(tuple(ContentsRef(t, gone) for t in given), now, values)
            while len(self._known) > MOST_MODELS:
                self._known.popitem(last=False)
            return entry


def _none() -> None:
    return None


_LINE: Final = 64
"""Bytes that each value's address is a multiple of, as torch's allocations are."""


def on_large_pages(values: list[Any], given: Iterable[Any]) -> list[Any]:
    """The same values, where those on the CPU are in one block of memory for which the system is asked for
    large pages; the values as they are, where it has none or they would not fill one. The block lives as
    long as one of its values.

    Args:
        values: tensors, and whatever else a program reads. Each is released once it is copied.
        given: what they were computed from, whose memory is somebody else's.
    """
    own = _owned(values, given)
    sizes = [_rounded(values[number].nbytes) for number in own]
    if sum(sizes) < LARGE_PAGE or not HAS_LARGE_PAGES:
        return values
    memory, at = large_block(sum(sizes)), 0
    for number, size in zip(own, sizes, strict=True):
        value = values[number]
        room = memory[at : at + value.nbytes].view(value.dtype)
        # rebuilt, not viewed: it is a tensor by itself, with a version of its own
        values[number] = torch.empty(0, dtype=value.dtype).set_(
            room.untyped_storage(), room.storage_offset(), value.size(), value.stride()
        )
        values[number].copy_(value)
        at += size
    return values


def _owned(values: Sequence[Any], given: Iterable[Any]) -> list[int]:
    """Which values are dense tensors on the CPU whose memory nothing else has."""
    taken = {_address(value) for value in given if _is_plain(value)}
    shared = Counter(_address(value) for value in values if _is_plain(value))
    return [
        number
        for number, value in enumerate(values)
        if _is_plain(value)
        and _is_dense(value)
        and _address(value) not in taken
        and shared[_address(value)] == 1
    ]


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the numbers of a tensor are all that its memory holds."""
    return 0 < value.nbytes == value.untyped_storage().nbytes()


def _address(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _rounded(size: int) -> int:
    return -(-size // _LINE) * _LINE
