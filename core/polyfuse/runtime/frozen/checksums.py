"""Checksums of memory, by which a call sees whether a parameter was written to: a plugin computes them, as
fast as memory is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

Region: TypeAlias = tuple[int, int]
"""An address, and how many bytes lie there."""


class Checksum(Protocol):
    """A number for the bytes of some regions. Other bytes give another number, but for one case in four
    thousand million.
    """

    def __call__(self, *regions: Region) -> int:
        """The number."""


FindChecksum = Callable[[bool], Checksum | None]
"""Gives the function, or None as long as it is being built and where it cannot be; called with whether to
wait for it.
"""

_OFFERED: list[FindChecksum] = []


def offer_checksum(find: FindChecksum) -> None:
    """Have checked calls use a checksum, not products by torch; the last one that was offered counts."""
    _OFFERED[:] = [find]


def has_checksum() -> bool:
    """Whether a plugin offers one."""
    return bool(_OFFERED)


def checksum(wait: bool = False) -> Checksum | None:
    """The function that was offered, if it can be had; with `wait`, also if that takes a while."""
    return _OFFERED[0](wait) if _OFFERED else None
