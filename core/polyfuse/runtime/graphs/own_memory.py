"""Memory of their own for results that callers hold call after call, in place of copies.

A recorded result lies in a pool, where other recordings compute on the way, so that a caller who holds it has
to get a copy. A result in memory outside of every pool is overwritten by its own recording alone, and two
recordings with such results alternate. They take the memory of the copies.

A program says nothing of what it allocates for its results. So each recording observes what the program
allocates, in order, and with which of it the results end up; as the program does the same every time, another
recording of it can be given other memory for those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Allocations"]

_ALLOCATES = "empty_strided"
"""How the names of functions begin by which the text of a program allocates."""


class Allocations:
    """What a program allocates while it runs once.

    Args:
        namespace: of the program's text; None if there is none, so that nothing is observed.
    """

    def __init__(self, namespace: dict[str, Any] | None = None) -> None:
        self._namespace = namespace if namespace is not None else {}

    @contextmanager
    def observed(self, given: Mapping[int, torch.UntypedStorage]) -> Iterator[list[StorageWeakRef]]:
        """Observe what is allocated meanwhile: the storages in order. Some of it, by number, is not allocated
        but given.
        """
        found: list[StorageWeakRef] = []
        before = {name: f for name, f in self._namespace.items() if name.startswith(_ALLOCATES)}

        def observing(allocate: Any) -> Any:
            def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
                storage = given.get(len(found))
                made: torch.Tensor
                if storage is None:
                    made = allocate(size, stride, dtype)
                else:
                    made = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, size, stride)
                found.append(StorageWeakRef(made.untyped_storage()))
                return made

            return empty_strided

        self._namespace.update({name: observing(f) for name, f in before.items()})
        try:
            yield found
        finally:
            self._namespace.update(before)
