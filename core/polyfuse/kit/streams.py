"""How many arrays a kernel runs through at once: what a fusion rule for CPUs knows."""

from __future__ import annotations

from typing import Final

from polyfuse.plugin import Claim, FusionPair, No, Yes

__all__ = ["few_streams"]

_MOST: Final = 16
"""Arrays that the hardware prefetches side by side."""

_IN_CACHE: Final = 1 << 20
"""Bytes that stay in a core's second cache, where nothing is prefetched."""

_SAVED: Final = 4
"""A fusion that saves this part of the traffic is worth more arrays."""


def few_streams(pair: FusionPair) -> Claim:
    """Whether two groups of nodes share enough data to become a kernel of many arrays.

    Measured on an EPYC with two cores (`benchmarks/results/fusion_rules.json`): a kernel that reads and
    writes 25 arrays of a megabyte or more takes 1.1 to 1.3 times as long as two that read what they share
    twice, and one of 65 arrays 1.6 times.
    """
    if pair.streams <= _MOST or pair.touched_bytes < _IN_CACHE:
        return Yes()
    if pair.shared_bytes * _SAVED >= pair.touched_bytes:
        return Yes()
    return No(f"one kernel would run through {pair.streams} arrays, more than are prefetched side by side")
