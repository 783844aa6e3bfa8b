"""The timer of products, against a GPU whose queue and whose host take time of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.plugin import DeviceTimer, PluginManager, Timer
from polyfuse_cutlass import timer as timers
from polyfuse_cutlass.timer import ProductTimer

FLUSH = 0.05


class Queue:
    """Milliseconds of the host, and those at which a GPU will be done with all that is queued."""

    type = "cuda"

    def __init__(self, host: float, kernels: Iterable[float]) -> None:
        self.now = self.done = 0.0
        self.host = host
        self.kernels = itertools.cycle(kernels)
        self.flushes = 0

    def put(self, milliseconds: float) -> None:
        self.done = max(self.done, self.now) + milliseconds

    def launch(self) -> None:
        self.now += self.host
        self.put(next(self.kernels))

    def flush(self) -> None:
        self.now += 0.005
        self.flushes += 1
        self.put(FLUSH)

    def event(self, **_: object) -> Any:
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = max(self.done, self.now)

        event.record = record
        event.elapsed_time = lambda other: other.at - event.at
        return event

    def synchronize(self, index: int | None = None) -> None:
        self.now = max(self.now, self.done)

    def properties(self) -> Any:
        return SimpleNamespace(cache_bytes=50 << 20)


def timed(monkeypatch: pytest.MonkeyPatch, queue: Queue, make: Callable[[], Timer]) -> float:
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: SimpleNamespace(sum=queue.flush))
    monkeypatch.setattr(torch.cuda, "Event", queue.event)
    monkeypatch.setattr(torch.cuda, "synchronize", queue.synchronize)
    monkeypatch.setattr(timers.time, "perf_counter", lambda: queue.now / 1e3)
    return make().milliseconds([queue.launch])


@pytest.mark.parametrize("host", [0.01, 0.2, 0.7])
def test_what_the_host_takes_to_launch_is_not_counted(monkeypatch, host):
    queue = Queue(host, [0.03])
    assert timed(monkeypatch, queue, lambda: ProductTimer(queue)) == pytest.approx(0.03)
    # the core's timer, whose one reading of the cache may be over too early, counts it
    other = Queue(host, [0.03])
    found = timed(monkeypatch, other, lambda: DeviceTimer("cuda", 50 << 20))
    assert (found > 0.1) == (host > FLUSH)


def test_launches_of_varying_length_count_by_their_mean(monkeypatch):
    """Two of five take four times as long; no median says so."""
    queue = Queue(0.001, [0.1, 0.1, 0.4, 0.1, 0.4])
    found = timed(monkeypatch, queue, lambda: ProductTimer(queue))
    assert 0.15 < found < 0.25


@pytest.mark.parametrize(("cost", "samples"), [(0.001, 100), (100.0, 8)])
def test_quick_products_are_timed_often_and_slow_ones_seldom(monkeypatch, cost, samples):
    queue = Queue(0.001, [cost])
    assert timed(monkeypatch, queue, lambda: ProductTimer(queue)) == pytest.approx(cost)
    assert queue.flushes == 2 + samples


def test_the_plugin_answers_where_its_backend_is_first():
    manager = PluginManager(Settings())
    answers = [
        manager.hooks.ask("polyfuse_timer", device_type="cuda", backend=name, settings=Settings())
        for name in ("cutlass", "triton")
    ]
    kinds = [type(next(iter(found)).value) for found in answers]
    assert kinds == [ProductTimer, DeviceTimer]
