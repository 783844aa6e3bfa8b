"""Calls whose results follow from parameters alone, such as weights laid out for a library: done once for
each parameter, and again when it has changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.runtime.frozen import stamp

__all__ = ["ONCE", "Once"]

ONCE = "once."
"""Before the name of an operator that is called through `Once`."""


@dataclass
class _Kept:
    """A result, and the state of the parameter that it was computed from."""

    parameter: weakref.ref[torch.Tensor]
    stamp: tuple[tuple[int, int], ...]
    result: Any


class Once:
    """Called as the operator is, with a parameter first and with plain values. A result is kept as long as
    its parameter lives.
    """

    def __init__(self, operator: Callable[..., Any]) -> None:
        self._operator = operator
        self._kept: dict[tuple[int, Hashable], _Kept] = {}
        self._lock = threading.Lock()

    def __call__(self, parameter: torch.Tensor, *args: Any) -> Any:
        key = id(parameter), tuple(tuple(a) if isinstance(a, list) else a for a in args)
        kept = self._kept.get(key)
        if kept is not None and kept.parameter() is parameter and kept.stamp == stamp((parameter,)):
            return kept.result
        with self._lock:
            now = stamp((parameter,))
            # a tensor made in inference mode would not say when it is written to
            with torch.inference_mode(False), torch.no_grad():
                result = self._operator(parameter.detach(), *args)
            forget = weakref.ref(parameter, lambda _: self._kept.pop(key, None))
            self._kept[key] = _Kept(forget, now, result)
            return result
