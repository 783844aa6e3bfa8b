"""Calls of operators that are made once for each parameter, and how many bytes packed copies may take."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from polyfuse.base.process import ForkedLock
from polyfuse.runtime.frozen.checksums import Checksum, Region, checksum
from polyfuse.runtime.frozen.entries import MOST_MODELS, Entry, forget, stamp_of
from polyfuse.torch_compat.bindings import multiply_bytes
from polyfuse.torch_compat.swaps import ContentsRef

FROZEN = "frozen."
"""Before the name of an operator that is called through `FrozenCall`."""

CHECKED = "checked."
"""Before the name of an operator that is called through `CheckedCall`."""

TOGETHER = "together."
"""After `FROZEN` or `CHECKED`: the operator is called through `FrozenCalls` or `CheckedCalls`."""

ONCE = (FROZEN, CHECKED)
"""All such beginnings."""

_RUN = 64
"""Numbers of a parameter that are multiplied with random ones together, where they divide it."""

_PROBES = 4
"""Random bytes that each byte of an integer parameter is multiplied with."""

_BITS = {2: torch.int16, 4: torch.int32}
"""Types of as many bytes, in which NaN is equal to itself; others are seen as numbers of 64 bits."""


class FrozenCall:
    """Called as the operator is, with a parameter first and with plain values. A result lives as long as its
    parameter.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        self._operator = operator
        self._known: dict[tuple[int, Hashable], Entry] = {}
        self._lock = ForkedLock()

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
            now = stamp_of((parameter,))
            # a tensor made in inference mode would not say when it is written to
            with torch.inference_mode(False), torch.no_grad():
                result = self._operator(parameter.detach(), *args)
            known = ContentsRef(parameter, lambda _: self._known.pop(key, None))
            self._known[key] = Entry((known,), now, result)
            return result


@dataclass(frozen=True, eq=False)
class _Row:
    """What a program is given for all its parameters.

    Attributes:
        plain: the values beside each parameter: the object that came with the call.
        seen: what the parameters were.
        values: what was made of them.
    """

    plain: tuple[Any, ...]
    seen: Entry | _Sum
    values: tuple[Any, ...]


class FrozenCalls:
    """`FrozenCall` for all parameters of a program at once: called with these, and a tuple of plain values
    for each. Returns as many results. Programs hold the plain values as one constant, which is known by its
    identity.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        self._each = self._for_one(operator)
        self._known: OrderedDict[tuple[int, ...], _Row] = OrderedDict()
        self._lock = ForkedLock()

    def __call__(self, parameters: tuple[torch.Tensor, ...], plain: tuple[Any, ...]) -> tuple[Any, ...]:
        key = tuple(map(id, parameters))
        row = self._known.get(key)
        if row is None or row.plain is not plain or not row.seen.is_current(parameters):
            return self._renewed(key, parameters, plain)
        return row.values

    @staticmethod
    def _for_one(operator: Callable[..., Any]) -> FrozenCall:
        return FrozenCall(operator)

    @staticmethod
    def _look(parameters: Sequence[torch.Tensor], gone: Callable[[object], None]) -> Entry | _Sum | None:
        """What parameters are now, if they can be known again; `gone` is called when one of them goes."""
        return Entry(tuple(ContentsRef(p, gone) for p in parameters), stamp_of(parameters), None)

    def _renewed(
        self, key: tuple[int, ...], parameters: tuple[torch.Tensor, ...], plain: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        with self._lock:
            # before what it stands for is made: who writes meanwhile is found by the next call
            seen = self._look(parameters, partial(forget, weakref.ref(self), key))
            values = tuple(self._each(p, *given) for p, given in zip(parameters, plain, strict=True))
            self._known.pop(key, None)
            if seen is not None:
                self._known[key] = _Row(plain, seen, values)
            while len(self._known) > MOST_MODELS:
                self._known.popitem(last=False)
            return values


class CheckedCall(FrozenCall):
    """`FrozenCall` for users who did not ask for it: each call looks at the parameter's numbers, too, for
    they can be written to in ways that leave no trace, such as through `parameter.data`. Reading a parameter
    takes a fraction of the time that laying it out does.

    It takes a checksum of the numbers' bytes, where a plugin offers one (`offer_checksum`). Until that can be
    had, each run of numbers in memory is multiplied with a fixed vector of random numbers. A change that
    leaves all these products as they were is so small that a layer would round it away as well; those of
    integers are exact, and see a change of a run but for one in 2**32; those of floats of 16 bits are rounded
    more than a layer does, and are not used.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        super().__init__(operator)
        self._seen: dict[int, _Sum | _Products] = {}

    def __call__(self, parameter: torch.Tensor, *args: Any) -> Any:
        number = id(parameter)
        seen = self._seen.get(number)
        if seen is None or not seen.is_current((parameter,)):
            with self._lock:
                # a copy, made at once: other threads take out what belongs to parameters that go
                for key in list(self._known):
                    if key[0] == number:
                        self._known.pop(key, None)
                self._look(parameter)
        elif isinstance(seen, _Products) and parameter.device.type == "cpu" and checksum() is not None:
            with self._lock:
                self._look(parameter)
        return super().__call__(parameter, *args)

    def _look(self, parameter: torch.Tensor) -> None:
        """Remember what a parameter is, if its numbers can be known again."""
        number = id(parameter)

        def gone(_: object) -> None:
            self._seen.pop(number, None)

        dtype = parameter.dtype
        precise = not dtype.is_floating_point or dtype.itemsize >= torch.float32.itemsize
        function = checksum(wait=not precise) if parameter.device.type == "cpu" else None
        if function is not None:
            self._seen[number] = _Sum.of((parameter,), gone, function)
        elif precise:
            self._seen[number] = _Products.of(parameter, ContentsRef(parameter, gone))
        else:
            self._seen.pop(number, None)


class CheckedCalls(FrozenCalls):
    """`CheckedCall` for all parameters of a program at once, as `FrozenCalls` is. One checksum of them all is
    taken, which threads share evenly, however small each is. Until it can be had, each is looked at alone.
    """

    @staticmethod
    def _for_one(operator: Callable[..., Any]) -> FrozenCall:
        return CheckedCall(operator)

    @staticmethod
    def _look(parameters: Sequence[torch.Tensor], gone: Callable[[object], None]) -> Entry | _Sum | None:
        function = checksum()
        return None if function is None else _Sum.of(parameters, gone, function)


@dataclass(frozen=True, eq=False)
class _Sum:
    """What dense parameters were when they were looked at.

    Attributes:
        parameters: that it belongs to.
        regions: their memory.
        function: the checksum.
        number: what that was.
    """

    parameters: tuple[weakref.ref[torch.Tensor], ...]
    regions: tuple[Region, ...]
    function: Checksum
    number: int

    @classmethod
    def of(
        cls, parameters: Sequence[torch.Tensor], gone: Callable[[object], None], function: Checksum
    ) -> _Sum:
        """Of parameters as they are now; `gone` is called when one of them goes."""
        known = tuple(ContentsRef(parameter, gone) for parameter in parameters)
        regions = tuple((p.data_ptr(), p.numel() * p.dtype.itemsize) for p in parameters)
        return cls(known, regions, function, function(*regions))

    def is_current(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether these are the parameters, and their numbers are the same."""
        for known, region, parameter in zip(self.parameters, self.regions, given):
            if parameter.data_ptr() != region[0] or known() is not parameter:
                return False
        return self.function(*self.regions) == self.number


@dataclass(frozen=True, eq=False)
class _Products:
    """The same by products with random numbers.

    Attributes:
        parameter: that it belongs to.
        address: of its memory.
        runs: a view of that memory, a row for each run.
        probe: random numbers between 1 and 2, by which each run is multiplied.
        bits: of the products; those of integers, of which bytes are multiplied, as they are.
    """

    parameter: weakref.ref[torch.Tensor]
    address: int
    runs: torch.Tensor
    probe: torch.Tensor
    bits: torch.Tensor

    @classmethod
    def of(cls, parameter: torch.Tensor, known: weakref.ref[torch.Tensor]) -> _Products:
        count, dtype = parameter.numel(), parameter.dtype
        # short runs are read one after the other; of long ones, the library reads several side by side
        short = dtype.is_floating_point and count % _RUN == 0
        run = _RUN if short else count // parameter.shape[0]
        with torch.inference_mode(False), torch.no_grad():
            runs = torch.as_strided(parameter.detach(), (count // run, run), (run, 1))
            if not dtype.is_floating_point:
                runs = runs.view(torch.int8)
            probe = _probe(runs.shape[1], dtype)
            return cls(known, parameter.data_ptr(), runs, probe, _products(runs, probe))

    def is_current(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether this is the parameter, and its numbers are the same."""
        (parameter,) = given
        known = self.parameter()
        if known is None or known is not parameter or known.data_ptr() != self.address:
            return False
        return torch.equal(self.bits, _products(self.runs, self.probe))


def _products(runs: torch.Tensor, probe: torch.Tensor) -> torch.Tensor:
    """Of runs and a probe, as integers, where NaN is equal to itself."""
    if not runs.dtype.is_floating_point:
        return multiply_bytes(runs, probe)
    products = torch.mv(runs, probe)
    return products.view(_BITS.get(products.dtype.itemsize, torch.int64))


@lru_cache(maxsize=256)
def _probe(length: int, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):
        own = torch.Generator().manual_seed(length)
        if not dtype.is_floating_point:
            return torch.randint(-127, 128, (length, _PROBES), generator=own, dtype=torch.int8)
        return torch.rand(length, generator=own, dtype=dtype) + 1


_BYTES = 64 << 20
_PART = 10


def once(op: str, freezing: bool) -> str:
    """The name of a call of an operator that is made once for each parameter: with the option `freezing`
    again after writes that torch counts, else after any write.
    """
    return f"{FROZEN if freezing else CHECKED}{op}"


def room_of(parameters: int) -> int:
    """Bytes that packed copies may take without the option `freezing`, beside parameters of so many: 64 MB,
    or a tenth of them.
    """
    return max(_BYTES, parameters // _PART)
