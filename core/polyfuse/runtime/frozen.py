"""Frozen constants: values that follow from the parameters of a model alone, such as weights laid out for a
library. They are computed when parameters are met for the first time, and again when these have changed.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch

from polyfuse.torch_compat.ops import resolve
from polyfuse.torch_compat.tracing.pytree import flatten, unflatten

__all__ = [
    "CHECKED",
    "FROZEN",
    "ONCE",
    "TOGETHER",
    "CheckedCall",
    "FrozenCall",
    "FrozenCalls",
    "FrozenOperand",
    "FrozenProgram",
    "FrozenStep",
    "FrozenValues",
]

FROZEN = "frozen."
"""Before the name of an operator that is called through `FrozenCall`."""

TOGETHER = "frozen.together."
"""Before the name of an operator that is called through `FrozenCalls`."""

CHECKED = "checked."
"""Before the name of an operator that is called through `CheckedCall`."""

ONCE = (FROZEN, CHECKED)
"""All such beginnings."""

_RUN = 64
"""Numbers of a parameter that are multiplied with random ones together, where they divide it."""

_BITS = {2: torch.int16, 4: torch.int32}
"""Types of as many bytes, in which NaN is equal to itself; others are seen as numbers of 64 bits."""

_MOST_MODELS = 64
"""Sets of parameters that are remembered: the layers of a model may share one program."""

_CONSTANT_BYTES = 1 << 20
"""Larger constants are not copied into an entry of the graph cache."""

_Values = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
_Stamp = tuple[tuple[int, ...], tuple[int, ...]]

_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclass
class _Entry:
    """A value, and the state of the parameters that it was computed from. Whoever keeps entries finds them by
    the identity of their parameters, and forgets one when a parameter goes.
    """

    parameters: tuple[weakref.ref[torch.Tensor], ...]
    stamp: _Stamp
    value: Any

    def is_of(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether these are the parameters."""
        return all(ref() is tensor for ref, tensor in zip(self.parameters, given))

    def is_current(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether the parameters, which these are, have not changed."""
        addresses, versions = self.stamp
        if len(given) == 1:  # once for each packed weight of a call
            try:
                return given[0].data_ptr() == addresses[0] and given[0]._version == versions[0]
            except RuntimeError:
                return self.stamp == _stamp(given)
        # hundreds of parameters, not in the caches: loops in C, that touch nothing else
        if tuple(map(_address, given)) != addresses:
            return False
        try:
            return tuple(map(_version, given)) == versions
        except RuntimeError:  # one is a tensor made in inference mode
            return self.stamp == _stamp(given)


def _stamp(given: Sequence[torch.Tensor]) -> _Stamp:
    """What changes when parameters do: where they are, and how often they were written to. Tensors made in
    inference mode do not count that.
    """
    return tuple(map(_address, given)), tuple(-1 if t.is_inference() else t._version for t in given)


@dataclass(frozen=True)
class FrozenOperand:
    """Instead of an argument: a parameter, a constant, or the result of an earlier step."""

    number: int


@dataclass(frozen=True)
class FrozenStep:
    """A call of an operator.

    Attributes:
        op: its name such as `aten.mul.Tensor`; `getitem` for one of several results.
        args, kwargs: `FrozenOperand` and plain values, in tuples and lists, too.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, made: Sequence[Any]) -> Any:
        """Its result, from what was made before."""
        call = operator.getitem if self.op == "getitem" else resolve(self.op)
        leaves, nesting = flatten((self.args, dict(self.kwargs)))
        filled = [made[leaf.number] if isinstance(leaf, FrozenOperand) else leaf for leaf in leaves]
        args, kwargs = unflatten(filled, nesting)
        return call(*args, **kwargs)

    def takes(self) -> set[int]:
        """Numbers of what it needs."""
        leaves, _ = flatten((self.args, dict(self.kwargs)))
        return {leaf.number for leaf in leaves if isinstance(leaf, FrozenOperand)}


@dataclass(frozen=True, eq=False)
class FrozenValues:
    """Computes values from the parameters of a model: the same for all numbers in them, so that it can be
    stored without them.

    Attributes:
        sources: positions of the parameters among the inputs of a graph.
        constants: tensors that the graph holds.
        steps: calls, in order; a number of `FrozenOperand` counts parameters, then constants, then these.
        results: which of these numbers are the values.
        layouts: size and stride of each value.
        folded: how many operations went into the weights of a convolution.
    """

    sources: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    steps: tuple[FrozenStep, ...]
    results: tuple[int, ...]
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    folded: int = 0

    def __call__(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """The values, in the layouts that the graph was compiled for."""
        with torch.inference_mode(False), torch.no_grad():
            return [
                value if tuple(value.stride()) == stride else _laid_out(value, size, stride)
                for value, (size, stride) in zip(self.compute(*given), self.layouts, strict=True)
            ]

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


def _laid_out(value: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).copy_(value)


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
        self._known: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        self._lock = threading.Lock()

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
        given = [args[i] for i in self._sources]
        entry = self._known.get(tuple(map(id, given)))
        if entry is None or not entry.is_current(given):
            entry = self._renewed(given)
        args.extend(entry.value)
        return self.program(args)

    def _renewed(self, given: Sequence[torch.Tensor]) -> _Entry:
        key = tuple(map(id, given))
        with self._lock:
            entry = self._known.get(key)
            if entry is not None and entry.is_current(given):
                return entry
            now = _stamp(given)
            values = self._compute(given)
            if entry is not None and entry.is_of(given):
                # at the same addresses, which recordings of the program may hold
                for old, new in zip(entry.value, values, strict=True):
                    old.copy_(new)
                entry.stamp = now
                return entry
            forget = partial(_forget, weakref.ref(self), key)
            entry = self._known[key] = _Entry(tuple(weakref.ref(t, forget) for t in given), now, values)
            while len(self._known) > _MOST_MODELS:
                self._known.popitem(last=False)
            return entry


def _forget(program: weakref.ref[FrozenProgram | FrozenCalls], key: tuple[int, ...], _: object) -> None:
    """What is known of parameters of which one is gone: another tensor may get its identity."""
    alive = program()
    if alive is not None:
        alive._known.pop(key, None)


class FrozenCall:
    """Called as the operator is, with a parameter first and with plain values. A result lives as long as its
    parameter.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        self._operator = operator
        self._known: dict[tuple[int, Hashable], _Entry] = {}
        self._lock = threading.Lock()

    def __call__(self, parameter: torch.Tensor, *args: Any) -> Any:
        key: tuple[int, Hashable] = (id(parameter), args)
        try:
            entry = self._known.get(key)
        except TypeError:  # lists among them
            key = id(parameter), tuple(tuple(a) if isinstance(a, list) else a for a in args)
            entry = self._known.get(key)
        if entry is not None and entry.is_current((parameter,)):
            return entry.value
        with self._lock:
            now = _stamp((parameter,))
            # a tensor made in inference mode would not say when it is written to
            with torch.inference_mode(False), torch.no_grad():
                result = self._operator(parameter.detach(), *args)
            forget = weakref.ref(parameter, lambda _: self._known.pop(key, None))
            self._known[key] = _Entry((forget,), now, result)
            return result


@dataclass
class _Row(_Entry):
    """What a program is given for all its parameters.

    Attributes:
        plain: the values beside each parameter: the object that came with the call.
    """

    plain: tuple[Any, ...]


class FrozenCalls:
    """`FrozenCall` for all parameters of a program at once: called with these, and a tuple of plain values
    for each. Returns as many results. Programs hold the plain values as one constant, which is known by its
    identity.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        self._each = FrozenCall(operator)
        self._known: OrderedDict[tuple[int, ...], _Row] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, parameters: tuple[torch.Tensor, ...], plain: tuple[Any, ...]) -> tuple[Any, ...]:
        key = tuple(map(id, parameters))
        row = self._known.get(key)
        if row is None or row.plain is not plain or not row.is_current(parameters):
            row = self._renewed(key, parameters, plain)
        values: tuple[Any, ...] = row.value
        return values

    def _renewed(
        self, key: tuple[int, ...], parameters: tuple[torch.Tensor, ...], plain: tuple[Any, ...]
    ) -> _Row:
        with self._lock:
            now = _stamp(parameters)
            values = tuple(self._each(p, *given) for p, given in zip(parameters, plain, strict=True))
            forget = partial(_forget, weakref.ref(self), key)
            row = self._known[key] = _Row(
                tuple(weakref.ref(p, forget) for p in parameters), now, values, plain
            )
            while len(self._known) > _MOST_MODELS:
                self._known.popitem(last=False)
            return row


class CheckedCall(FrozenCall):
    """`FrozenCall` for users who did not ask for it: each call looks at the parameter's numbers, too, for
    they can be written to in ways that leave no trace, such as through `parameter.data`.

    Each run of numbers in memory is multiplied with a fixed vector of random numbers. A change that leaves
    all these products as they were is so small that a layer would round it away as well. Reading a parameter
    takes a fraction of the time that laying it out does.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        super().__init__(operator)
        self._seen: dict[int, _Snapshot] = {}

    def __call__(self, parameter: torch.Tensor, *args: Any) -> Any:
        number = id(parameter)
        seen = self._seen.get(number)
        if seen is None or not seen.still(parameter):
            with self._lock:
                for key in [key for key in self._known if key[0] == number]:
                    del self._known[key]
                forget = weakref.ref(parameter, lambda _: self._seen.pop(number, None))
                self._seen[number] = _Snapshot.of(parameter, forget)
        return super().__call__(parameter, *args)


@dataclass(frozen=True, eq=False)
class _Snapshot:
    """What a dense parameter was when it was looked at.

    Attributes:
        parameter: that it belongs to.
        address: of its memory.
        runs: a view of that memory, a row for each run.
        probe: random numbers between 1 and 2, by which each run is multiplied.
        bits: of the products.
    """

    parameter: weakref.ref[torch.Tensor]
    address: int
    runs: torch.Tensor
    probe: torch.Tensor
    bits: torch.Tensor

    @classmethod
    def of(cls, parameter: torch.Tensor, known: weakref.ref[torch.Tensor]) -> _Snapshot:
        count, dtype = parameter.numel(), parameter.dtype
        # short runs are read one after the other; of long ones, the library reads several side by side
        run = _RUN if count % _RUN == 0 else count // parameter.shape[0]
        with torch.inference_mode(False), torch.no_grad():
            runs = torch.as_strided(parameter.detach(), (count // run, run), (run, 1))
            probe = _probe(run, dtype)
            return cls(known, parameter.data_ptr(), runs, probe, _bits(torch.mv(runs, probe)))

    def still(self, parameter: torch.Tensor) -> bool:
        """Whether this is the parameter, and its numbers are the same."""
        known = self.parameter()
        if known is None or known is not parameter or known.data_ptr() != self.address:
            return False
        return torch.equal(self.bits, _bits(torch.mv(self.runs, self.probe)))


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    """The same as integers, where NaN is equal to itself."""
    return numbers.view(_BITS.get(numbers.dtype.itemsize, torch.int64))


@lru_cache(maxsize=256)
def _probe(length: int, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):
        own = torch.Generator().manual_seed(length)
        return torch.rand(length, generator=own, dtype=dtype) + 1
