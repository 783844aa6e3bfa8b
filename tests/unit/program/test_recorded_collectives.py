"""Programs recorded in partitions around collectives, on a device that fills with nonsense what nobody uses,
in a group that does its work when it is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

import delayed_group
from obstacle import layers
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.compiler.reports.report import last_reports
from polyfuse.runtime.devices.device import Device
from recorded_on_device import status
from recording_partitions import compiled, fresh_device, same

functional = torch.ops._c10d_functional
wait = functional.wait_tensor


@pytest.fixture(autouse=True)
def group() -> Iterator[delayed_group.DelayedGroup]:
    found = delayed_group.start()
    with fresh_device():
        yield found
    delayed_group.stop()


def work(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Layers before, beside and after collectives, on tensors of one size."""
    x = layers(x, w)
    gathered = functional.all_gather_into_tensor(x, 2, "0")
    total = functional.all_reduce(x.sin(), "sum", "0")
    beside = layers(x + 1, w)
    first, second = wait(gathered)[:4], wait(total)
    return layers(first + beside, w), second, layers(second, w)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4), torch.randn(4, 4)


@pytest.mark.quick(1)
@pytest.mark.parametrize("overlap", (False, True))
def test_what_runs_is_safe_from_recordings(overlap: bool) -> None:
    run = compiled(work, overlap_collectives=overlap, overlap_memory=500, network_bandwidth=1)
    held = []
    for _ in range(7):
        x, w = operands()
        held.append((run(x, w), work(x, w)))
    for actual, expected in held:
        same(actual, expected)
    parts = status().partitions
    assert len(parts) >= 3 and all(part.replays for part in parts)
    assert "communicates with other processes" in explain_graph(last_reports()[-1])


def test_results_that_are_waited_for_later() -> None:
    """After the program has run again."""

    def start(x: torch.Tensor, w: torch.Tensor) -> Any:
        x = layers(x, w)
        return functional.all_gather_into_tensor(x, 2, "0"), layers(x, w)

    run = compiled(start)
    held = []
    for _ in range(6):
        x, w = operands()
        held.append((run(x, w), start(x, w)))
    for actual, expected in held:
        same([wait(t) for t in actual], [wait(t) for t in expected])


@pytest.mark.quick(1)
@pytest.mark.parametrize("overlap", (False, True))
def test_a_device_that_records_collectives_records_the_whole(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "recorded_collectives", frozenset({delayed_group.NAME}))
    # the group is the same as before, the device is not: what is in the graph cache is of another one
    options = {"overlap_collectives": overlap, "overlap_memory": 500, "network_bandwidth": 1, "cache": False}
    run = compiled(work, **options)
    held = []
    for _ in range(7):
        x, w = operands()
        held.append((run(x, w), work(x, w)))
    for actual, expected in held:
        same(actual, expected)
    found = status()
    assert not found.refused and not found.partitions and found.replays
