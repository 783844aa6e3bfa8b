"""Series of launches on the CPU: one call does what the program's text does kernel by kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyfuse.backend import polyfuse
from polyfuse_cpp.native_host import series

LAUNCHES = 10


def chain(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums along one dimension after the other, which no kernel computes together."""
    for i in range(LAUNCHES):
        x = (x - x.cumsum(i % 2)).softmax(1 - i % 2)
    return x, x.sum(0)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many launches each call of a series has that one function carries out."""
    found: list[int] = []
    run: Callable[..., Any] = series._Joined.run

    def counted(self: series._Joined, args: list[Any]) -> tuple[Any, ...]:
        results: tuple[Any, ...] = run(self, args)
        found.append(sum(row[0] == "launch" for row in self._plan.rows))
        assert not args
        return results

    monkeypatch.setattr(series._Joined, "run", counted)
    return found


@pytest.mark.parametrize("rows", [12, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_chain(joined: list[int], rows: int) -> None:
    """From 1,500 rows on, intermediate values lie in a block that the program has for them."""
    call = torch.compile(chain, backend=polyfuse, dynamic=False)
    for seed in range(3):
        x = torch.randn(rows, 257, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(call(x), chain(x))
    assert len(joined) == 2 and joined[0] >= 8  # the first call is made kernel by kernel
    held = call(x)
    torch.testing.assert_close(call(x + 1), chain(x + 1))
    torch.testing.assert_close(held, chain(x))  # results have memory of their own
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.testing.assert_close(call(x), chain(x))
    assert any("fused" in event.key for event in profile.key_averages())
    found: list[bool] = []

    def compare(value: torch.Tensor) -> None:
        found.append(all(torch.equal(a, b) for _ in range(5) for a, b in zip(call(value), call(value))))

    threads = [threading.Thread(target=compare, args=(x + i,)) for i in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [True] * 3


def test_it_can_be_switched_off(joined: list[int]) -> None:
    call = torch.compile(chain, backend=polyfuse, dynamic=False, options={"launch_series": False})
    x = torch.randn(12, 257)
    for _ in range(3):
        torch.testing.assert_close(call(x), chain(x))
    assert not joined


def test_memory_is_used_again() -> None:
    memory = series._Memory()
    assert [memory.take(0, 100), memory.take(1, 64), memory.take(2, 1)] == [0, 128, 192]
    memory.give(0)
    memory.give(7)
    assert [memory.take(3, 65), memory.take(4, 64)] == [0, 256]
    assert memory.size == 320
