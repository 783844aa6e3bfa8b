"""One look at all parameters of a program, by which a call sees that none changed; a plugin builds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from polyfuse.torch_compat.bindings import storage_address, tensor_data_ptr_address, tensor_view_address

FEW = 8
"""So few parameters are compared in Python as fast as a function of another language is called."""


Look: TypeAlias = Callable[[list[Any]], bool]
"""Whether the parameters among the arguments of a program are the ones it was made for, unchanged. It may be
False for another reason, and what holds it drops it before one of the parameters goes.
"""


@dataclass(frozen=True)
class ParameterState:
    """What to look for.

    Attributes:
        positions: of the parameters among the arguments.
        parameters: plain tensors, each of which counts what is written to it.
        addresses: where the numbers of each are.
        versions: what each counted.
        storages: where torch notes what memory each has: hints, to fetch ahead.
        layouts: of each its dimensions, sizes and strides, in one sequence; empty: others look at these.
        address: address of the C function `void* f(PyObject* tensor)`, where the numbers are.
        view: address of the C function `int f(PyObject* tensor, DLTensor* view)`: that, with the layout.
    """

    positions: Sequence[int]
    parameters: Sequence[torch.Tensor]
    addresses: Sequence[int]
    versions: Sequence[int]
    storages: Sequence[int]
    layouts: Sequence[int]
    address: int
    view: int


MakeLook: TypeAlias = Callable[[ParameterState], Look]
"""Gives the function for some parameters."""

FindLook: TypeAlias = Callable[[], MakeLook | None]
"""Gives what makes such functions, or None as long as it is being built and where it cannot be."""

_OFFERED: list[FindLook] = []


def offer_look(find: FindLook) -> None:
    """Have frozen programs look at their parameters so; the last one that was offered counts."""
    _OFFERED[:] = [find]


def can_look() -> bool:
    """Whether such functions can be made, by now; the first question has a plugin build what makes them."""
    return bool(_OFFERED) and None not in _functions() and _OFFERED[0]() is not None


def look_at(
    positions: Sequence[int],
    parameters: Sequence[torch.Tensor],
    addresses: Sequence[int],
    versions: Sequence[int],
    with_layouts: bool,
) -> Look:
    """The function for parameters at these positions among the arguments, and what is known of them. It
    answers False where they are few, no plain tensors, or do not count what is written to them.
    """
    make = _OFFERED[0]() if _OFFERED else None
    plain = all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in parameters)
    address, view = _functions()
    if None in (make, address, view) or not plain or len(parameters) < FEW or min(versions) < 0:
        return _says_nothing
    assert make is not None and address is not None and view is not None
    storages = tuple(map(storage_address, parameters))
    layouts = [n for p in parameters for n in (p.dim(), *p.shape, *p.stride())] if with_layouts else []
    return make(ParameterState(positions, parameters, addresses, versions, storages, layouts, address, view))


def _says_nothing(_: list[Any]) -> bool:
    return False


@lru_cache
def _functions() -> tuple[int | None, int | None]:
    return tensor_data_ptr_address(), tensor_view_address()
