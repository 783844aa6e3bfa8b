"""Recording and replaying forward and backward: gradients are eager mode's, saved values live until used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from recorded import compiled, status
from torch import nn

from fake_graphs import FakeDevice
from polyfuse.runtime.graphs.memory import Slot

Seen = Callable[[], list[str]]


def same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def pair() -> tuple[nn.Module, Callable[..., torch.Tensor], nn.Module]:
    """A model, itself compiled, and an equal one for eager mode."""
    model = Net()
    reference = copy.deepcopy(model)
    return model, compiled(model), reference


def state(model: nn.Module) -> list[torch.Tensor]:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *gradients, *model.buffers()]


def optimizers(*models: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]


def test_steps_of_training(device: FakeDevice) -> None:
    model, run, reference = pair()
    mine, theirs = optimizers(model, reference)
    for _ in range(6):
        x = torch.randn(5, 8)
        for optimizer in (mine, theirs):
            optimizer.zero_grad()
        actual, expected = run(x), reference(x)
        same(actual, expected)
        actual.backward()
        expected.backward()
        same(state(model), state(reference))
        for optimizer in (mine, theirs):
            optimizer.step()
    assert status("forward").replays == 5 - status("forward").plain + 1
    assert status("backward").replays >= 4
    assert status("backward").recordings == 1
    assert len(device.pools) == 1


def test_a_backward_reads_what_its_forward_saved_where_it_is(device: FakeDevice) -> None:
    from polyfuse.runtime.graphs import inputs as graph_inputs

    treatments = []
    original = graph_inputs.plan_inputs

    def spy(*args: object, **named: object) -> graph_inputs.InputPlan:
        treatments.append(original(*args, **named))  # type: ignore[arg-type]
        return treatments[-1]

    from polyfuse.runtime.graphs import replay

    replay.plan_inputs, before = spy, replay.plan_inputs  # type: ignore[assignment]
    try:
        _, run, _ = pair()
        for _ in range(2):
            run(torch.randn(5, 8)).backward()
    finally:
        replay.plan_inputs = before
    forward, backward = treatments
    assert len(forward.copied) == 1
    # the gradient that comes in, and the model's own input, which the forward did not compute
    assert len(backward.copied) <= 2
    assert len(backward.slots) >= 3


def test_however_large_a_gradient_is_and_wherever_the_backward_is_recorded_once(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyfuse.runtime.graphs import inputs as graph_inputs

    monkeypatch.setattr(graph_inputs, "IN_PLACE", 5 * 4 * 4)
    monkeypatch.setattr(graph_inputs, "COPY_LIMIT", 5 * 8 * 4)
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 16), nn.Tanh())
    run, reference = compiled(model), copy.deepcopy(model)
    gradients = [torch.empty(5, 16) for _ in range(4)]
    for step in range(8):
        x = torch.randn(5, 8)
        gradient = gradients[step // 3 if step < 6 else step % 4].normal_()
        model.zero_grad()
        reference.zero_grad()
        run(x).backward(gradient)
        reference(x).backward(gradient)
        same(state(model), state(reference))
    assert status("backward").recordings == 1
    assert status("backward").replays == 7
    assert len(device.pools) == 1
    # the copy is in memory of the pool, which serves the backward once it has read it
    backward = device.graphs[1]
    saved = {block.memory.data_ptr() for block in device.graphs[0].own}
    alike = {a.data_ptr() for a in backward.args if isinstance(a, torch.Tensor) and a.shape == (5, 16)}
    (buffer,) = alike - saved
    assert buffer in {block.memory.data_ptr() for block in backward.harmed}


def test_gradients_that_add_up(device: FakeDevice) -> None:
    model, run, reference = pair()
    mine, theirs = optimizers(model, reference)
    for number in range(8):
        x = torch.randn(5, 8)
        run(x).backward()
        reference(x).backward()
        same(state(model), state(reference))
        if number % 3 == 2:
            for optimizer in (mine, theirs):
                optimizer.step()
                optimizer.zero_grad()
    assert status("backward").replays >= 4


def copies_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of results that each replay copies, as they come."""
    from polyfuse.runtime.graphs import copied, recording

    monkeypatch.setattr(copied, "LARGE", 1)
    found: list[int] = []
    original = recording._lent

    def spy(slots: Sequence[Slot], wanted: copied.CopiedResults) -> tuple[Slot, ...]:
        lent = original(slots, wanted)
        found.append(len(lent))
        return lent

    monkeypatch.setattr(recording, "_lent", spy)
    return found


def test_of_gradients_that_add_up_only_the_first_are_copied(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = copies_made(monkeypatch)
    model, run, reference = pair()
    mine, theirs = optimizers(model, reference)
    for _ in range(5):
        copies.clear()
        for _ in range(4):
            x = torch.randn(5, 8)
            run(x).backward()
            reference(x).backward()
            same(state(model), state(reference))
        for optimizer in (mine, theirs):
            optimizer.step()
            optimizer.zero_grad()
    assert copies == [8, 0, 0, 0]
    # who keeps all of them gets copies of all
    held = []
    for _ in range(8):
        x = torch.randn(5, 8)
        gradients = [
            torch.autograd.grad(f(x), m.parameters()) for f, m in ((run, model), (reference, reference))
        ]
        held.append(gradients)
        for actual, expected in held:
            same(actual, expected)
    assert copies[-3:] == [8] * 3


def test_gradients_cleared_after_the_forward(device: FakeDevice) -> None:
    model, run, reference = pair()
    mine, theirs = optimizers(model, reference)
    for _ in range(7):
        x = torch.randn(5, 8)
        actual, expected = run(x), reference(x)
        mine.zero_grad()
        theirs.zero_grad()
        actual.backward()
        expected.backward()
        same(state(model), state(reference))
        mine.step()
        theirs.step()
    assert status("backward").replays >= 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_forwards_before_their_backwards(device: FakeDevice, order: tuple[int, int]) -> None:
    model, run, reference = pair()
    for _ in range(5):
        inputs = [torch.randn(5, 8) for _ in range(2)]
        actual, expected = [run(x) for x in inputs], [reference(x) for x in inputs]
        model.zero_grad()
        reference.zero_grad()
        for number in order:
            actual[number].backward()
            expected[number].backward()
        same(state(model), state(reference))
        del actual, expected
    assert status("forward").recordings == 2
    assert status("forward").replays >= 6


@pytest.mark.slow
def test_more_pending_forwards_than_recordings(device: FakeDevice, warnings_seen: Seen) -> None:
    model, run, reference = pair()
    for _ in range(3):
        inputs = [torch.randn(5, 8) for _ in range(6)]
        actual, expected = [run(x) for x in inputs], [reference(x) for x in inputs]
        model.zero_grad()
        reference.zero_grad()
        sum(actual).backward()  # type: ignore[union-attr]
        sum(expected).backward()  # type: ignore[union-attr]
        same(state(model), state(reference))
        del actual, expected
    assert sum("yet to come" in w for w in warnings_seen()) >= 1


def test_a_backward_that_runs_twice(device: FakeDevice) -> None:
    model, run, reference = pair()
    for _ in range(4):
        x = torch.randn(5, 8)
        model.zero_grad()
        reference.zero_grad()
        for fn in (run, reference):
            loss = fn(x)
            loss.backward(retain_graph=True)
            loss.backward()
            del loss
        same(state(model), state(reference))


@pytest.mark.slow
def test_a_backward_that_runs_once_and_then_twice(device: FakeDevice) -> None:
    """What was recorded for one that runs once may use memory that one that runs again still needs."""
    model, run, reference = pair()
    with torch._functorch.config.patch(donated_buffer=False):
        for number in range(6):
            x = torch.randn(5, 8)
            model.zero_grad()
            reference.zero_grad()
            for fn in (run, reference):
                loss = fn(x)
                if number > 2:
                    loss.backward(retain_graph=True)
                loss.backward()
                del loss
            same(state(model), state(reference))
    assert status("backward").recordings == 2


def test_forwards_without_backward(device: FakeDevice) -> None:
    _, run, reference = pair()
    held = []
    for _ in range(7):
        x = torch.randn(5, 8)
        held.append((run(x), reference(x)))
    for actual, expected in held:
        same(actual, expected)
    del held, actual, expected
    for _ in range(3):
        x = torch.randn(5, 8)
        same(run(x), reference(x))


def test_losses_that_are_held(device: FakeDevice) -> None:
    model, run, reference = pair()
    losses = []
    for _ in range(9):
        x = torch.randn(5, 8)
        model.zero_grad()
        reference.zero_grad()
        actual, expected = run(x), reference(x)
        actual.backward()
        expected.backward()
        losses.append((actual.detach(), expected.detach()))
        same(state(model), state(reference))
    for actual, expected in losses:
        same(actual, expected)
    assert status("forward").replays >= 3


def test_gradients_that_are_held(device: FakeDevice) -> None:
    model, run, reference = pair()
    held = []
    for _ in range(6):
        x = torch.randn(5, 8)
        model.zero_grad()
        reference.zero_grad()
        run(x).backward()
        reference(x).backward()
        held.append(
            [(a.grad, b.grad) for a, b in zip(model.parameters(), reference.parameters(), strict=True)]
        )
    for gradients in held:
        for mine, theirs in gradients:
            same(mine, theirs)


def test_changing_sizes(device: FakeDevice) -> None:
    model = Net()
    reference = copy.deepcopy(model)
    run = compiled(model, dynamic=True)
    for size in (3, 5, 7) * 4:
        x = torch.randn(size, 8)
        model.zero_grad()
        reference.zero_grad()
        actual, expected = run(x), reference(x)
        same(actual, expected)
        actual.backward()
        expected.backward()
        same(state(model), state(reference))
        del actual, expected
    assert status("forward").recordings == 3
    assert status("backward").recordings == 3
    assert status("backward").replays >= 6
    assert len(device.pools) == 1


def test_the_input_needs_a_gradient_too(device: FakeDevice) -> None:
    run = compiled(lambda x: torch.sin(x).mul(x).sum())
    for _ in range(5):
        x = torch.randn(6, requires_grad=True)
        run(x).backward()
        mine, x.grad = x.grad, None
        torch.sin(x).mul(x).sum().backward()
        same(mine, x.grad)


def test_nothing_is_saved_but_what_was_given(device: FakeDevice) -> None:
    run = compiled(lambda x, w: (x * w).cumsum(0))
    for _ in range(6):
        x, w = torch.randn(4, 5), torch.randn(4, 5, requires_grad=True)
        result = run(x, w)
        (grad,) = torch.autograd.grad(result.sum(), w)
        (wanted,) = torch.autograd.grad((x * w).cumsum(0).sum(), w)
        same(grad, wanted)
        del result, grad
    assert status("forward").replays == 5
    assert status("backward").replays >= 4, status("backward").text()


@pytest.mark.slow
def test_parts_of_a_model_compiled_one_by_one(device: FakeDevice) -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
    reference = copy.deepcopy(blocks)
    runs = [compiled(block) for block in blocks]
    for _ in range(6):
        x = torch.randn(4, 8)
        mine, theirs = x, x
        for run, block in zip(runs, reference, strict=True):
            mine, theirs = run(mine), block(theirs)
        same(mine, theirs)
        blocks.zero_grad()
        reference.zero_grad()
        mine.sum().backward()
        theirs.sum().backward()
        same(state(blocks), state(reference))
        del mine, theirs
    assert device.replays >= 15


def test_dropout_is_the_same_in_the_backward(device: FakeDevice) -> None:
    run = compiled(lambda x: torch.nn.functional.dropout(x * 3, 0.5).sum())
    for _ in range(5):
        x = torch.ones(64, requires_grad=True)
        loss = run(x)
        loss.backward()
        assert x.grad is not None
        same(x.grad.sum(), loss.detach())


def test_training_and_inference_take_turns(device: FakeDevice) -> None:
    model, run, reference = pair()
    for number in range(9):
        x = torch.randn(5, 8)
        if number % 3 == 2:
            model.eval()
            reference.eval()
            with torch.no_grad():
                same(run(x), reference(x))
            model.train()
            reference.train()
            continue
        model.zero_grad()
        reference.zero_grad()
        run(x).backward()
        reference(x).backward()
        same(state(model), state(reference))


def test_what_was_saved_is_given_up_as_the_backward_reads_it(device: FakeDevice) -> None:
    _, run, _ = pair()
    for _ in range(3):
        run(torch.randn(5, 8)).backward()
    forward, backward = device.graphs
    saved = [block for block in forward.own if block.number == forward.number]
    assert len([block for block in backward.harmed if block in saved]) >= 3


def test_what_is_held_for_another_backward_is_not_given_up(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a backward that was read from the cache of graphs overwrites copies instead
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    _, run, _ = pair()
    for _ in range(3):
        loss = run(torch.randn(5, 8))
        loss.backward(retain_graph=True)
        loss.backward()
        del loss
    assert not [block for block in device.graphs[1].harmed if block in device.graphs[0].own]


def test_gradients_in_memory_that_was_given_up(device: FakeDevice) -> None:
    """They are results of the backward, though they begin where an input of it did."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh())
    reference = copy.deepcopy(model)
    run = compiled(model)
    held = []
    for _ in range(6):
        x = torch.randn(8, 8)
        model.zero_grad()
        reference.zero_grad()
        run(x).sum().backward()
        reference(x).sum().backward()
        held.append([[p.grad for p in m.parameters()] for m in (model, reference)])
    for mine, theirs in held:
        same(mine, theirs)
    forward, backward = device.graphs[:2]
    given_up = {block.memory.data_ptr() for block in forward.own}
    assert given_up & {block.memory.data_ptr() for block in backward.own}
