"""What is built for tried: all at once, or as long as there is time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfuse.autotune import candidate as builder
from polyfuse.autotune.candidate import CandidateBuilder, CandidateProgram, Fault, KernelRequest
from polyfuse.base.errors import KernelBuildError
from polyfuse.cache import Located
from polyfuse.cache.timings import Candidate
from polyfuse.plugin import Source, Yes
from polyfuse.workers.future import BuildFuture, Location


class Maker:
    name = "maker"

    def review(self, folder: Path, key: str) -> Yes:
        return Yes()


class Pool:
    """Builds one kernel whenever somebody looks, and counts what it was asked for; `wrong` fails."""

    workers = 2

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.units: dict[str, Future[Mapping[str, Location]]] = {}
        self.idle = 0

    def submit(self, backend: Any, sources: Sequence[Source], store: Any) -> BuildFuture:
        self.asked.append([source.name for source in sources])
        units: dict[str, Future[Mapping[str, Location]]] = {source.key: Future() for source in sources}
        self.units |= {source.name: units[source.key] for source in sources}
        for source in sources:
            location: Location = Located(Path("somewhere"), source.key)
            if source.name == "wrong":
                location = KernelBuildError("it is wrong", "write another")
            units[source.key].set_result({source.key: location})
        return BuildFuture(units, lambda key, location: KernelBuildError("nothing is loaded", "do not ask"))

    def wait_until_idle(self) -> None:
        self.idle += 1


def entry(*names: str) -> CandidateProgram:
    maker: Any = Maker()
    steps = tuple(KernelRequest(maker, Source(name, f"text of {name}", "text"), ()) for name in names)
    return CandidateProgram(Candidate(" and ".join(names)), steps)


def shop(until: float = math.inf) -> tuple[Pool, CandidateBuilder]:
    pool: Any = Pool()
    store: Any = None
    return pool, CandidateBuilder(pool, store, until)


def test_all_is_asked_for_at_once_and_once():
    pool, made = shop()
    entries = [entry(f"k{i}", "shared") for i in range(20)]
    made.begin(entries)
    heard: list[tuple[int, int]] = []
    made.wait(lambda built, kernels: heard.append((built, kernels)))
    made.begin(entries)
    made.wait()
    assert len(pool.asked) == 1 and len(pool.asked[0]) == 21 and pool.idle == 2
    assert heard[-1] == (21, 21) and all(made.is_built(one) for one in entries)
    assert [step.key for step in made.built(entries[0]).steps] == [  # type: ignore[union-attr]
        step.source.key
        for step in entries[0].steps  # type: ignore[union-attr]
    ]


def test_where_time_may_run_out_little_is_begun_at_a_time(monkeypatch):
    pool, made = shop(until=10.0)
    now = iter((1.0, 2.0, 11.0, 12.0))
    monkeypatch.setattr(builder, "time", SimpleNamespace(monotonic=lambda: next(now)))
    entries = [entry(f"k{i}") for i in range(20)]
    made.begin(entries)
    heard: list[tuple[int, int]] = []
    made.wait(lambda built, kernels: heard.append((built, kernels)))
    slices = [len(names) for names in pool.asked]
    assert slices == [2 * builder._SLICE] * 3 and pool.idle == 1
    assert [made.is_built(one) for one in entries] == [True] * 12 + [False] * 8
    assert heard == [(4, 20), (8, 20), (12, 20)]


def test_what_cannot_be_built_is_a_fault():
    _, made = shop()
    made.begin([entry("wrong")])
    made.wait()
    with pytest.raises(Fault, match="it is wrong"):
        made.built(entry("wrong"))


def test_a_library_needs_nothing_built():
    pool, made = shop()
    made.begin([entry()])
    made.wait()
    assert pool.asked == [] and made.is_built(entry()) and made.built(entry()).steps == ()
