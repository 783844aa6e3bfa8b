"""Timing on the device, against a device that counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from polyfuse.kit import device_milliseconds

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
    assert device_milliseconds(device.launch, (1, 2), "cuda", L2_BYTES) == pytest.approx(0.25)
    assert device.size >= 2 * L2_BYTES
    # a first launch that counts for nothing, then pairs
    assert device.log[:2] == ["launch", "wait"]
    pairs = [item for item in device.log[2:] if item != "wait"]
    assert pairs[::2] == ["flush"] * (len(pairs) // 2) and pairs[1::2] == ["launch"] * (len(pairs) // 2)
    assert 5 <= len(pairs) // 2 <= 100


@pytest.mark.parametrize(("cost", "samples"), [(0.001, 100), (100.0, 5)])
def test_quick_kernels_are_timed_often_and_slow_ones_seldom(device, cost, samples):
    device.cost = cost
    assert device_milliseconds(device.launch, (), "cuda", L2_BYTES) == pytest.approx(cost)
    assert device.log.count("flush") == samples
