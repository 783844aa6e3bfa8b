"""Programs that cannot be recorded as a whole: what is around the obstacle is recorded in partitions."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fake_graphs import FakeDevice
from obstacle import around, layers, obstacle
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.compiler.reports.report import last_reports
from polyfuse.program.device_graphs import partition_fault
from polyfuse.program.steps import Partition
from polyfuse.runtime.module import CompiledModule
from program_builder import Builder, add, add_one
from recorded_on_device import status
from recording_partitions import compiled, fresh_device, operands, same


@pytest.fixture(autouse=True)
def device() -> Iterator[FakeDevice]:
    with fresh_device() as made:
        yield made


def test_what_is_before_and_after_is_recorded(device: FakeDevice) -> None:
    run = compiled(around)
    for _ in range(6):
        x, w = operands()
        result = run(x, w)
        same(result, around(x, w))
        del result
    first, second = status().partitions
    assert (first.recordings, first.replays, second.replays) == (1, 5, 5)
    assert device.recorded == 1 + second.recordings
    report = explain_graph(last_reports()[-1])
    assert "not recorded as a whole: polyfuse_tests.obstacle.default cannot be recorded" in report
    assert "partition 0 is recorded 1 times, 5 calls replayed" in report


@pytest.mark.quick(1)
@pytest.mark.parametrize("pools", [False, True])
def test_results_that_are_held_stay_as_they_are(pools: bool) -> None:
    run = compiled(lambda x, w: (around(x, w), layers(x, w)), memory_pools=pools)
    held = []
    for _ in range(8):
        x, w = operands()
        held.append((run(x, w), (around(x, w), layers(x, w))))
    for actual, expected in held:
        same(actual, expected)


def test_training() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
            self.second = copy.deepcopy(self.first)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            middle: torch.Tensor = obstacle(self.first(x))
            return self.second(middle).square().mean()

    model = Net()
    reference = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(6):
        x = torch.randn(3, 4)
        model.zero_grad()
        reference.zero_grad()
        actual, expected = run(x), reference(x)
        same(actual, expected)
        actual.backward()
        expected.backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            same(mine.grad, theirs.grad)
        del actual, expected
    assert [part.replays for part in status("forward").partitions] == [5, 5]
    assert status("backward").replays == 5


def test_sizes_are_passed_on() -> None:
    run = compiled(lambda x, w: around(x, w) * x.shape[0], dynamic=True)
    for rows in (3, 5, 3, 5, 3, 5, 3, 5):
        x, w = operands(rows)
        result = run(x, w)
        same(result, around(x, w) * rows)
        del result
    assert status().partitions[0].recordings == 2
    assert status().partitions[0].replays == 6


@pytest.mark.slow
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_come_from_data_are_not_recorded() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = layers(x, w)
        return layers(y[y[:, 0] > 0.25], w)

    run = compiled(fn, strict=False)
    for _ in range(4):
        x, w = operands()
        same(run(x, w), fn(x, w))
    (only,) = status().partitions
    assert only.replays == 3


def test_inputs_that_are_written_to() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(layers(x, w))
        return layers(obstacle(state), w)

    run = compiled(fn)
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    for number in range(8):
        x, w = operands()
        if number > 3:
            mine = mine.clone()
        result = run(x, w, mine)
        same(result, fn(x, w, theirs))
        same(mine, theirs)
        del result


@pytest.mark.slow
def test_random_numbers() -> None:
    run = compiled(lambda x, w: nn.functional.dropout(around(x, w), 0.5))
    x, w = operands(200)
    results = [run(x, w) for _ in range(4)]
    for result in results:
        dropped = result == 0
        same(result[~dropped], 2 * around(x, w)[~dropped])
        assert 0.3 < dropped.float().mean() < 0.7


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"profile": True}, {"debug_sync": True}, {"nan_asserts": True}])
def test_nothing_is_recorded_under_options_that_are_in_the_way(
    options: dict[str, bool], device: FakeDevice
) -> None:
    run = compiled(around, **options)
    for _ in range(3):
        x, w = operands()
        same(run(x, w), around(x, w))
    assert not status().partitions and not device.recorded


def test_a_few_launches_are_not_worth_it() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return layers(obstacle(layers(x, w, 1)), w, 1)

    run = compiled(fn)
    for _ in range(3):
        x, w = operands()
        same(run(x, w), fn(x, w))
    assert not status().partitions


def parts_of(builder: Builder) -> tuple[Partition, ...]:
    return builder.program(device_graphs=True).partitions


def chain(b: Builder, start: str, names: str) -> str:
    for name in names:
        b.launch(add_one, [b.buffer(name, (4,))], [start])
        start = name
    return start


def test_what_a_part_gets_and_gives() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.tensor("p", (4,), static=True)
    chain(b, "x", "abcd")
    b.launch(add, [b.buffer("e", (4,))], ["d", "p"])
    b.call("aten._local_scalar_dense.default", [b.view("e", (), ())], [b.buffer("n", ())])
    b.output(chain(b, "e", "fghij"), "a")
    first, second = parts_of(b)
    assert (first.inputs, first.results) == (("x", "p"), ("a", "e"))
    assert first.facts.fixed == (1,) and first.facts.varying == (0,)
    assert (second.inputs, second.results) == (("e",), ("j",))
    assert first.facts.mutated == () and set(first.dead) == {"x", "p"}


def test_what_is_on_another_device_is_in_the_way() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.output(chain(b, "x", "ab"))
    schedule = b.schedule()
    assert not partition_fault(schedule.steps[0], schedule.graph, "cpu")
    assert partition_fault(schedule.steps[0], schedule.graph, "cuda:0") == "x is on cpu"


def test_a_program_without_parts_has_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    original = CompiledModule.__init__

    def spy(self: CompiledModule, name: str, text: str, *rest: Any) -> None:
        texts.append(text)
        original(self, name, text, *rest)

    monkeypatch.setattr(CompiledModule, "__init__", spy)
    compiled(layers)(*operands())
    compiled(around)(*operands())
    assert "PARTITIONS" not in texts[0] and "PARTITIONS = (('partition_0'" in texts[1]
    assert texts[1].index("def partition_0(args):") < texts[1].index("def call(args):")
