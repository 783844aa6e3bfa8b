"""What times of several engines say, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_BARS = "▁▂▃▄▅▆▇█"
_BAR_COUNT = 12
_DRAWS = 1000
_SURE = 0.9


@dataclass(frozen=True)
class Latency:
    """Times of one engine's calls, in milliseconds.

    Attributes:
        calls: how many there were.
        median, p90, p99, least: of them all.
        spread: half the distance between the quartiles, as a part of the median.
        turns: the median of each turn, in order.
    """

    calls: int
    median: float
    p90: float
    p99: float
    least: float
    spread: float
    turns: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as eager mode: the median over turns, and between which bounds it lies in 90 of
    100 resamplings of the turns."""

    value: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether the bounds leave out that there is no difference."""
        return self.low > 1 or self.high < 1


def latency(turns: Sequence[Sequence[float]]) -> Latency:
    """What the seconds of all turns say; there is at least one call."""
    every = sorted(t * 1e3 for turn in turns for t in turn)
    middle = _quantile(every, 0.5)
    spread = (_quantile(every, 0.75) - _quantile(every, 0.25)) / 2 / middle if middle else 0.0
    by_turn = tuple(median(turn) * 1e3 for turn in turns if turn)
    return Latency(
        len(every), middle, _quantile(every, 0.9), _quantile(every, 0.99), every[0], spread, by_turn
    )


def speed_up(eager: Sequence[float], other: Sequence[float]) -> Ratio:
    """How many times as fast another engine is, from times of turns taken next to each other."""
    pairs = [a / b for a, b in zip(eager, other, strict=False) if b]
    draw = random.Random(0)
    drawn = sorted(median(draw.choices(pairs, k=len(pairs))) for _ in range(_DRAWS))
    edge = (1 - _SURE) / 2
    return Ratio(median(pairs), _quantile(drawn, edge), _quantile(drawn, 1 - edge))


def spark(values: Sequence[float]) -> str:
    """A line of bars, one for each group of values in order; the lowest bar is the least value, the highest
    the largest, but no less than 1.5 times that, so that noise is not drawn as a mountain range.
    """
    if not values:
        return ""
    count = min(_BAR_COUNT, len(values))
    groups = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    heights = [median(group) for group in groups]
    low, high = min(heights), max(max(heights), min(heights) * 1.5)
    return "".join(_BARS[min(7, int((h - low) / (high - low or 1) * 7.99))] for h in heights)


def _quantile(ordered: Sequence[float], part: float) -> float:
    position = part * (len(ordered) - 1)
    before = int(position)
    after = min(before + 1, len(ordered) - 1)
    return ordered[before] + (ordered[after] - ordered[before]) * (position - before)
