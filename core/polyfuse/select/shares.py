"""Which kernels of a graph are worth a search: each is measured once as it would be without tuning, and what
is a small part of the whole stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polyfuse.cache.timings import LOST, Measured, TimingStore
from polyfuse.select.heat import Bout, Heat

__all__ = ["note_usual", "settled_by_share", "with_usual"]

_LEAST = 0.01
"""Of the time of a graph: a kernel with less, all its launches together, is not searched for a faster one."""


@dataclass(frozen=True)
class _Usual:
    """How long a kernel takes as it is without tuning."""

    name: str
    milliseconds: float


def note_usual(timings: TimingStore, heat: Heat) -> None:
    """Remember how long the usual entry of a heat takes, for later graphs and processes."""
    for name, milliseconds in heat.times.items():
        if milliseconds != LOST:
            timings.note(heat.bout.key, {"name": name, "milliseconds": milliseconds})


def with_usual(timings: TimingStore, key: str, known: Measured) -> Measured:
    """What is known of a question, with the time of its usual entry, if that was measured."""
    usual = _usual(timings, key)
    if usual is None:
        return known
    return replace(known, milliseconds={usual.name: usual.milliseconds, **known.milliseconds})


def settled_by_share(
    timings: TimingStore, bouts: Iterable[Bout], answers: Mapping[str, Measured], beside: float
) -> dict[str, Measured]:
    """The answers to those open questions that are not worth a search: all remains as it is.

    Args:
        answers: what is known; questions without a best are open.
        beside: milliseconds that the graph spends on other things.
    """
    open_ones: list[tuple[Bout, _Usual]] = []
    total = beside
    for bout in bouts:
        known = answers[bout.key]
        if known.best is not None:
            total += bout.uses * known.milliseconds[known.best]
            continue
        usual = _usual(timings, bout.key)
        if usual is not None:
            total += bout.uses * usual.milliseconds
            open_ones.append((bout, usual))
    return {
        bout.key: Measured({usual.name: usual.milliseconds}, usual.name, bout.problem.about)
        for bout, usual in open_ones
        if bout.uses * usual.milliseconds < _LEAST * total
    }


def _usual(timings: TimingStore, key: str) -> _Usual | None:
    value = timings.noted(key)
    try:
        return _Usual(str(value["name"]), float(value["milliseconds"]))  # type: ignore[index]
    except (TypeError, ValueError, KeyError):
        return None
