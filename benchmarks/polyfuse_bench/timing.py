"""Timing several callables against each other in one process, in interleaved rounds.

A machine's speed drifts (clock, neighbours, memory), so the candidates alternate: one sample of each per
round, in an order that rotates. A sample repeats the call until it lasts long enough for the clock, and the
result is the median over rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_WAKING_CALLS = 2
"""Calls behind a rest that are not counted: threads wake, and caches fill."""

Call = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Effort:
    """How long to measure; `patience` is how many seconds a candidate's first calls may take, 0 for any.

    `rest_seconds` pass before each sample, and two calls that do not count follow them: candidates with
    threads of their own let these spin for a while behind a call, on cores that the next one needs.
    """

    rounds: int = 15
    min_sample_seconds: float = 0.02
    warmup_seconds: float = 0.2
    max_seconds: float = 60.0
    patience: float = 0.0
    rest_seconds: float = 0.0


DEFAULT_EFFORT = Effort()
QUICK = Effort(rounds=3, min_sample_seconds=0.002, warmup_seconds=0.01, max_seconds=5.0)


@dataclass(frozen=True)
class Timing:
    """Seconds a call of one candidate took, over the rounds."""

    name: str
    median: float
    low: float
    high: float
    best: float
    rounds: int
    calls_per_sample: int

    @property
    def milliseconds(self) -> float:
        return self.median * 1e3


@dataclass(frozen=True)
class Comparison:
    """Timings of all candidates over the same rounds."""

    timings: tuple[Timing, ...]

    def timing(self, name: str) -> Timing | None:
        return next((timing for timing in self.timings if timing.name == name), None)

    def speedup(self, name: str, over: str) -> float | None:
        """How many times faster `name` is than `over`: the ratio of their medians."""
        mine, other = self.timing(name), self.timing(over)
        return other.median / mine.median if mine and other else None


def nothing() -> None:
    """What to wait for on a device whose calls return when they are done."""


def compare(
    calls: Mapping[str, Call],
    effort: Effort = DEFAULT_EFFORT,
    wait: Call = nothing,
    clock: Clock = time.perf_counter,
) -> Comparison:
    """Time every call of `calls` in interleaved rounds; a sample ends when `wait` returns.

    `clock` gives seconds: `time.process_time` those of this process alone, whatever else the machine does.
    """
    repeats = {name: _calibrate(call, effort, wait) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    try:
        for round_number in range(effort.rounds):
            turn = round_number % len(names)
            for name in names[turn:] + names[:turn]:
                if effort.rest_seconds:
                    time.sleep(effort.rest_seconds)
                    _sample(calls[name], _WAKING_CALLS, wait)
                samples[name].append(_sample(calls[name], repeats[name], wait, clock))
            if round_number >= 2 and time.perf_counter() - began > effort.max_seconds:
                break
    finally:
        if collecting:
            gc.enable()
    return Comparison(tuple(_summary(name, samples[name], repeats[name]) for name in names))


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean, or None of nothing."""
    return statistics.geometric_mean(values) if values else None


def _calibrate(call: Call, effort: Effort, wait: Call) -> int:
    """Warm `call` up and answer how often it must run for one sample to last `min_sample_seconds`. One call
    does not tell: it may compile, and the second may record a device's work.
    """
    began = time.perf_counter()
    count = 0
    fastest = float("inf")
    while True:
        seconds = _sample(call, 1, wait)
        fastest = min(fastest, seconds)
        count += 1
        spent = time.perf_counter() - began
        if spent >= effort.warmup_seconds and (
            count >= 3 or (count == 2 and fastest > effort.max_seconds / 10)
        ):
            break
    return max(1, round(effort.min_sample_seconds / max(fastest, 1e-9)))


def _sample(call: Call, repeats: int, wait: Call, clock: Clock = time.perf_counter) -> float:
    wait()
    began = clock()
    for _ in range(repeats):
        call()
    wait()
    return (clock() - began) / repeats


def _summary(name: str, samples: Sequence[float], repeats: int) -> Timing:
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(
        name=name,
        median=statistics.median(ordered),
        low=ordered[round(last * 0.25)],
        high=ordered[round(last * 0.75)],
        best=ordered[0],
        rounds=len(ordered),
        calls_per_sample=repeats,
    )
