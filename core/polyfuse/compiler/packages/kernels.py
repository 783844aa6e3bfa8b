"""What the kernels of a stored graph were generated from, in few bytes: nearly always nobody reads it."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.ir.kernel import Kernel


@dataclass(frozen=True)
class GeneratedFrom:
    """What a kernel was generated from.

    Attributes:
        kernel: its representation.
        name: for people.
        config: the configuration, as text.
    """

    kernel: Kernel
    name: str
    config: str


def packed(kernels: Mapping[str, GeneratedFrom]) -> bytes:
    """Kernels by their names in a program."""
    return zlib.compress(pickle.dumps(dict(kernels)), 1)


class Unpacked:
    """What `packed` packed, read when it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def _kernels(self) -> Mapping[str, GeneratedFrom]:
        found: dict[str, GeneratedFrom] = pickle.loads(zlib.decompress(self._data))
        return found

    def get(self, name: str) -> GeneratedFrom:
        """What one kernel was generated from."""
        return self._kernels[name]
