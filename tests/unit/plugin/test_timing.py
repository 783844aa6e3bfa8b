"""Timing by the clocks of devices, against a device that counts, and what faulty timers cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fake_plugins import plugin
from polyfuse.base.settings import Settings
from polyfuse.plugin import DeviceTimer, HostTimer, PluginManager, Timer, hookimpl, register, unregister
from polyfuse.plugin.timing import cache_bytes

L2_BYTES = 50 << 20


class FakeDevice:
    """Time passes only where something is done: 7 ms for filling the cache, `cost` for a launch."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost = 0.0, cost
        self.log: list[str] = []

    def event(self, enable_timing: bool) -> object:
        assert enable_timing
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = self.now

        event.record = record
        event.elapsed_time = lambda other: other.at - event.at
        return event

    def zeros(self, count: int, device: str) -> object:
        self.size = 4 * count
        return SimpleNamespace(sum=self.flush)

    def flush(self) -> None:
        self.now += 7.0
        self.log.append("flush")

    def launch(self, *args: object) -> None:
        self.now += self.cost
        self.log.append("launch")

    def synchronize(self, device: object = None) -> None:
        self.log.append("wait")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice(0.25)
    monkeypatch.setattr(torch, "zeros", device.zeros)
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    return device


def test_each_launch_is_timed_with_other_memory_in_the_cache(device):
    assert DeviceTimer("cuda", L2_BYTES).milliseconds([device.launch]) == pytest.approx(0.25)
    assert device.size >= 2 * L2_BYTES
    # a first launch that counts for nothing, then pairs
    assert device.log[:2] == ["launch", "wait"]
    pairs = [item for item in device.log[2:] if item != "wait"]
    assert pairs[::2] == ["flush"] * (len(pairs) // 2) and pairs[1::2] == ["launch"] * (len(pairs) // 2)
    assert 5 <= len(pairs) // 2 <= 100


@pytest.mark.parametrize(("cost", "samples"), [(0.001, 100), (100.0, 5)])
def test_quick_kernels_are_timed_often_and_slow_ones_seldom(device, cost, samples):
    device.cost = cost
    assert DeviceTimer("cuda", L2_BYTES).milliseconds([device.launch]) == pytest.approx(cost)
    assert device.log.count("flush") == samples


def test_the_size_of_the_last_cache(tmp_path):
    for number, text in enumerate(("32K", "1024K", "16M", "nonsense")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(text)
    assert cache_bytes(tmp_path) == 16 << 20
    assert cache_bytes(tmp_path / "missing") == 32 << 20


class Odd(Timer):
    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> Any:
        return self.answer()


def raises(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        raises(ValueError()),
        raises(SystemExit(3)),
        lambda: None,
        lambda: float("nan"),
        lambda: -1,
        lambda: "1",
    ],
)
def test_a_faulty_timer_is_named_once_and_replaced(monkeypatch, warnings_seen, answer):
    point = plugin(monkeypatch, hooks={"polyfuse_timer": lambda: Odd(answer)})
    timer = PluginManager(Settings(), [point]).timer("toy", "cpu")
    for _ in range(2):
        assert 0 <= timer.milliseconds([lambda: None]) < 1000
    (text,) = warnings_seen()
    assert "'toy'" in text and "`polyfuse_timer`" in text


def test_a_launch_that_raises_is_no_fault_of_the_timer(monkeypatch, warnings_seen):
    point = plugin(monkeypatch, hooks={"polyfuse_timer": lambda: HostTimer()})
    timer = PluginManager(Settings(), [point]).timer("toy", "cpu")
    with pytest.raises(ZeroDivisionError):
        timer.milliseconds([lambda: 1 // 0])
    assert not warnings_seen()


def test_a_wrapper_always_has_a_timer_to_wrap():
    class Twice(Timer):
        def __init__(self, timer: Timer) -> None:
            self.timer = timer

        def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
            return self.timer.milliseconds(launches) * 0 + 2

    class Wrapper:
        @hookimpl(wrapper=True)
        def polyfuse_timer(self, device_type, backend):
            assert (device_type, backend) == ("cpu", "any")
            timer = yield
            assert isinstance(timer, HostTimer) and timer.cold_bytes
            return Twice(timer)

    register(Wrapper(), "wrapper")
    try:
        manager = PluginManager(Settings(), [])
    finally:
        unregister("wrapper")
    assert manager.timer("any", "cpu").milliseconds([lambda: None]) == 2
    assert manager.timer("any", "cpu") is manager.timer("any", "cpu"), "the hook is called once"
