"""Values that were computed from parameters, and whether these have changed since."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.runtime.frozen.looks import Look
from polyfuse.torch_compat.bindings import alike, may_skip_guards

MOST_MODELS = 64
"""Sets of parameters that are remembered: the layers of a model may share one program."""

_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when parameters do.

    Attributes:
        addresses: where they are.
        versions: how often they were written to; -1 of tensors made in inference mode, which do not count it.
        layouts: the strides of each, then the sizes of each; empty where Dynamo guards these.
        like: says of hundreds of parameters with one call that their layouts are these, or that it does not
            know.
    """

    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    layouts: tuple[tuple[int, ...], ...] = ()
    like: Callable[..., bool] | None = field(default=None, compare=False)


@dataclass
class Entry:
    """A value, and the state of the parameters that it was computed from. Whoever keeps entries finds them by
    the identity of their parameters, and forgets one when a parameter goes.

    Attributes:
        look: says with one call that the arguments of a program hold these parameters, unchanged.
    """

    parameters: tuple[weakref.ref[torch.Tensor], ...]
    stamp: Stamp
    value: Any
    look: Look | None = None

    def is_of(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether these are the parameters."""
        return all(ref() is tensor for ref, tensor in zip(self.parameters, given))

    def is_current(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether the parameters, which these are, have not changed."""
        stamp = self.stamp
        if stamp.like is not None and not stamp.like(*given) and _layouts(given) != stamp.layouts:
            return False
        if len(given) == 1:  # once for each packed weight of a call
            try:
                return given[0].data_ptr() == stamp.addresses[0] and given[0]._version == stamp.versions[0]
            except RuntimeError:
                return self.stamp == stamp_of(given)
        # hundreds of parameters, not in the caches: loops in C, that touch nothing else
        if tuple(map(_address, given)) != stamp.addresses:
            return False
        try:
            return tuple(map(_version, given)) == stamp.versions
        except RuntimeError:  # one is a tensor made in inference mode
            return self.stamp == stamp_of(given)


def stamp_of(given: Sequence[torch.Tensor]) -> Stamp:
    """What parameters are now."""
    addresses = tuple(map(_address, given))
    versions = tuple(-1 if t.is_inference() else t._version for t in given)
    if may_skip_guards() and all(t.layout is torch.strided for t in given):
        return Stamp(addresses, versions, _layouts(given), alike(given))
    return Stamp(addresses, versions)


def _layouts(given: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """The strides of each, then the sizes of each."""
    return *map(torch.Tensor.stride, given), *map(torch.Tensor.size, given)


def forget(program: weakref.ref[Any], key: tuple[int, ...], _: object) -> None:
    """What is known of parameters of which one is gone: another tensor may get its identity."""
    alive = program()
    if alive is not None:
        alive._known.pop(key, None)
