"""Programs of which recording fails where nobody expected it: they are recorded in partitions around that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fake_graphs import FakeDevice
from obstacle import layers, obstacle
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.compiler.reports.report import last_reports
from recorded_on_device import status
from recording_partitions import compiled, fresh_device, operands, same

_devices: list[FakeDevice] = []


@torch.library.custom_op("polyfuse_tests::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """Twice `x`, by an operator that waits for the device without saying so."""
    if any(device.at_work for device in _devices):
        raise RuntimeError("cannot wait for the device now")
    return x * 2


@torch.library.custom_op("polyfuse_tests::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    """Twice `x`."""
    return x * 2


for op in (waits, plain):
    op.register_fake(torch.empty_like)
    op.register_autograd(lambda ctx, grad: grad * 2)


def with_culprit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    middle: torch.Tensor = waits(layers(x, w))
    return layers(middle, w)


@pytest.fixture(autouse=True)
def device() -> Iterator[FakeDevice]:
    with fresh_device() as made:
        _devices.append(made)
        yield made
        _devices.clear()


def calls(run: Callable[..., Any], fn: Callable[..., Any], count: int, rows: int = 3) -> None:
    for _ in range(count):
        x, w = operands(rows)
        result = run(x, w)
        same(result, fn(x, w))
        del result


@pytest.mark.slow
def test_after_a_failure_the_rest_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    calls(compiled(with_culprit), with_culprit, 7)
    first, second = status().partitions
    # one call before anything is recorded, one that fails to be; each part runs as it is once
    assert (first.replays, second.replays) == (5, 5)
    report = explain_graph(last_reports()[-1])
    assert "not recorded as a whole: recording failed with RuntimeError: cannot wait" in report
    assert "partition 0 is recorded 1 times, 5 calls replayed" in report
    assert "is recorded in partitions: recording failed" in caplog.text


def test_what_can_be_recorded_is_recorded_as_a_whole(device: FakeDevice) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return layers(plain(layers(x, w)), w)

    calls(compiled(fn), fn, 5)
    assert status().partitions == [] and status().replays == 4 and device.recorded == 1


def test_one_that_is_to_be_left_out_anyway_takes_the_other_along() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = layers(waits(layers(x, w)), w)
        return layers(obstacle(y), w)

    calls(compiled(fn), fn, 6)
    assert [part.replays > 0 for part in status().partitions] == [True, True, True]


def test_a_failure_that_no_operator_of_others_makes(device: FakeDevice) -> None:
    device.fail = RuntimeError("no")
    calls(compiled(layers), layers, 4)
    assert status().partitions == [] and "recording failed with RuntimeError: no" in status().text()


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_several_sizes(dynamic: bool) -> None:
    run = compiled(lambda x, w: with_culprit(x, w) * x.shape[0], dynamic=dynamic)
    for rows in (3, 5, 3, 5, 3, 5, 3, 5):
        calls(run, lambda x, w: with_culprit(x, w) * x.shape[0], 1, rows)
    replays = sum(part.replays for report in last_reports() for part in report.recording.partitions)
    assert replays >= 8


def test_results_that_are_held_and_inputs_that_are_written_to() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state.mul_(0.5).add_(layers(x, w))
        return with_culprit(state, w), layers(x, w)

    run = compiled(fn)
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    held = []
    for _ in range(8):
        x, w = operands()
        held.append((run(x, w, mine), fn(x, w, theirs)))
        same(mine, theirs)
    for actual, expected in held:
        same(actual, expected)


def test_training() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layers(waits(layers(x, self.weights[0])), self.weights[1]).square().mean()

    model = Net()
    run = compiled(model)
    for _ in range(7):
        x = torch.randn(3, 4)
        parameters = list(model.parameters())
        expected = torch.autograd.grad(model(x), parameters)
        same(torch.autograd.grad(run(x), parameters), expected)
    assert [part.replays > 0 for part in status("forward").partitions] == [True, True]
    assert status("backward").replays > 0
