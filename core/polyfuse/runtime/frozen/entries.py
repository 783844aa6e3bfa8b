"""Values that were computed from parameters, and whether these have changed since."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

MOST_MODELS = 64
"""Sets of parameters that are remembered: the layers of a model may share one program."""

Stamp: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclass
class Entry:
    """A value, and the state of the parameters that it was computed from. Whoever keeps entries finds them by
    the identity of their parameters, and forgets one when a parameter goes.
    """

    parameters: tuple[weakref.ref[torch.Tensor], ...]
    stamp: Stamp
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
                return self.stamp == stamp_of(given)
        # hundreds of parameters, not in the caches: loops in C, that touch nothing else
        if tuple(map(_address, given)) != addresses:
            return False
        try:
            return tuple(map(_version, given)) == versions
        except RuntimeError:  # one is a tensor made in inference mode
            return self.stamp == stamp_of(given)


def stamp_of(given: Sequence[torch.Tensor]) -> Stamp:
    """What changes when parameters do: where they are, and how often they were written to. Tensors made in
    inference mode do not count that.
    """
    return tuple(map(_address, given)), tuple(-1 if t.is_inference() else t._version for t in given)


def forget(program: weakref.ref[Any], key: tuple[int, ...], _: object) -> None:
    """What is known of parameters of which one is gone: another tensor may get its identity."""
    alive = program()
    if alive is not None:
        alive._known.pop(key, None)
