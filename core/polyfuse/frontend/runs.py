"""Runs of a list that repeat themselves with some period."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np


def longest_repetition(
    tokens: Sequence[Hashable], least_period: int, least_repeats: int
) -> tuple[int, int, int]:
    """The start, the length and the period of the longest run of a list in which each item equals the one a
    period before; of equal runs the one with the shortest period. Zeros where none is so long.

    Args:
        least_period: items of a period.
        least_repeats: periods of a run.
    """
    known: dict[Hashable, int] = {}
    line = np.array([known.setdefault(token, len(known)) for token in tokens])
    covered, start, period = 0, 0, 0
    for distance in range(least_period, len(line) // least_repeats + 1):
        same = line[:-distance] == line[distance:]
        if np.count_nonzero(same) < max((least_repeats - 1) * distance, covered - distance):
            continue
        first, length = longest_run(same)
        # a run of so many equal pairs ends one period later; a multiple of a period covers no more than it
        whole = length + distance if length >= (least_repeats - 1) * distance else 0
        if whole > covered:
            covered, start, period = whole, first, distance
    return start, covered, period


def longest_run(same: Any) -> tuple[int, int]:
    """The start and length of the longest run of true values."""
    borders = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not len(borders):
        return 0, 0
    starts, ends = borders[::2], borders[1::2]
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best] - starts[best])
