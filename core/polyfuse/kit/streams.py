"""A fusion rule for CPUs: a limit to the number of arrays that a kernel streams at once."""

from __future__ import annotations

from typing import Final

_MOST: Final = 16
"""Arrays that the hardware prefetches side by side."""

_IN_CACHE: Final = 1 << 20
"""Bytes that stay in a core's second cache, where nothing is prefetched."""

_SAVED: Final = 4
"""A fusion that saves this part of the traffic is worth more arrays."""


def too_many_streams(streams: int, shared_bytes: int, touched_bytes: int) -> str:
    """Why two groups of nodes should not become a kernel of so many arrays; empty if they may.

    The arguments are those of a `FusionPair`. Measured on an EPYC with two cores
    (`benchmarks/results/fusion_rules.json`): a kernel that reads and writes 25 arrays of a megabyte or more
    takes 1.1 to 1.3 times as long as two that read what they share twice, and one of 65 arrays 1.6 times.
    """
    if streams <= _MOST or touched_bytes < _IN_CACHE or shared_bytes * _SAVED >= touched_bytes:
        return ""
    return f"one kernel would run through {streams} arrays, more than are prefetched side by side"
