"""Weak references to tensors that `torch.utils.swap_tensors` takes.

It refuses a tensor with weak references, since these would go on with the object and not with its contents.
Those of this module stand for the contents: before an exchange, what is called when a tensor goes
is called for both, and drops them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_lock = threading.Lock()


class ContentsRef(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor as long as it has its contents.

    Args:
        tensor: any tensor.
        gone: is called with the reference when the tensor goes, and before its contents are exchanged. It has
            to drop the reference.
    """

    def __new__(cls, tensor: torch.Tensor, gone: Callable[[Any], object]) -> ContentsRef:
        _notice_swaps()
        return super().__new__(cls, tensor, gone)


def _notice_swaps() -> None:
    """Have `torch.utils.swap_tensors`, which modules look up when they convert or load parameters, call the
    owners of references first. Once for a process, from the first reference on: others are left alone.
    """
    if getattr(torch.utils.swap_tensors, "_drops_references", False):
        return
    with _lock:
        swap = torch.utils.swap_tensors
        if getattr(swap, "_drops_references", False):
            return

        @wraps(swap)
        def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
            for tensor in (t1, t2):
                _drop(tensor)
            swap(t1, t2)

        swap_tensors._drops_references = True  # type: ignore[attr-defined]
        torch.utils.swap_tensors = swap_tensors


def _drop(tensor: torch.Tensor) -> None:
    for ref in weakref.getweakrefs(tensor):
        if isinstance(ref, ContentsRef) and ref.__callback__ is not None:
            ref.__callback__(ref)
