"""Recorded training and other loops on a real device, beside the same loops in eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports
from recorded_on_device import Net, compiled, same, status

pytestmark = pytest.mark.gpu


def test_training() -> None:
    model = Net().cuda()
    reference = copy.deepcopy(model)
    run = compiled(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference)]
    for _ in range(8):
        x = torch.randn(32, 64, device="cuda")
        for optimizer in optimizers:
            optimizer.zero_grad()
        actual, expected = run(x), reference(x)
        same(actual, expected)
        actual.backward()
        expected.backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            same(mine.grad, theirs.grad)
        for optimizer in optimizers:
            optimizer.step()
    assert status("forward").replays >= 6, status("forward").text()
    assert status("backward").replays >= 6, status("backward").text()


def test_gradients_that_add_up() -> None:
    model = Net().cuda()
    reference = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(8):
        x = torch.randn(32, 64, device="cuda")
        run(x).backward()
        reference(x).backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            same(mine.grad, theirs.grad)


def test_forwards_that_wait_for_their_backward() -> None:
    model = Net().cuda()
    reference = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(5):
        model.zero_grad()
        reference.zero_grad()
        batches = [torch.randn(32, 64, device="cuda") for _ in range(3)]
        sum(run(x) for x in batches).backward()  # type: ignore[union-attr]
        sum(reference(x) for x in batches).backward()  # type: ignore[union-attr]
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            same(mine.grad, theirs.grad)


@pytest.mark.usefixtures("two_gpus")
def test_recordings_on_two_devices_in_turn() -> None:
    model = Net().to("cuda:0")
    other = copy.deepcopy(model).to("cuda:1")
    references = copy.deepcopy(model), copy.deepcopy(other)
    runs = compiled(model), compiled(other)
    for _ in range(6):
        for run, mine, theirs in zip(runs, (model, other), references, strict=True):
            x = torch.randn(32, 64, device=next(mine.parameters()).device)
            mine.zero_grad()
            theirs.zero_grad()
            run(x).backward()
            theirs(x).backward()
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                same(a.grad, b.grad)
    statuses = [r.recording for r in last_reports() if r.recording is not None]
    assert len(statuses) == 4 and all(s.replays >= 4 for s in statuses), [s.text() for s in statuses]


@pytest.mark.parametrize("recorded", [False, True])
def test_checkpoints_draw_the_same_numbers_again(recorded: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(torch.tanh(x @ w), 0.5)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, use_reentrant=False).sum()

    run = compiled(loss, device_graphs=recorded, strict=True)
    x = torch.eye(64, device="cuda")
    w = torch.full((64, 64), 0.5, device="cuda", requires_grad=True)
    masks = []
    for _ in range(5):
        w.grad = None
        result = run(x, w)
        result.backward()
        assert w.grad is not None
        # an element that was dropped has no gradient, the others have the same one
        mask = w.grad != 0
        same(result, mask.sum() * 2 * torch.tanh(torch.tensor(0.5, device="cuda")))
        masks.append(mask)
        del result
    assert not torch.equal(masks[-1], masks[-2])
    if recorded:
        assert status("forward").replays >= 3, status("forward").text()
        assert status("backward").replays >= 3, status("backward").text()


def test_a_training_loop_with_a_scaler_and_half_precision() -> None:
    model = Net().cuda()
    reference = copy.deepcopy(model)
    run = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (model, reference)]
    scalers = [torch.amp.GradScaler("cuda") for _ in optimizers]
    for _ in range(6):
        x = torch.randn(32, 64, device="cuda")
        for function, optimizer, scaler in zip((run, reference), optimizers, scalers, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = function(x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            del loss
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-3)
    assert status("forward").replays >= 4, status("forward").text()
    assert status("backward").replays >= 4, status("backward").text()


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_attention(dropout: float) -> None:
    """Its backward gets seeds, which are on the CPU unless they are recorded."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.into(x).view(4, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(4, 16, 64)).float().square().mean()

    model = Attention().to("cuda", torch.bfloat16)
    reference = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(6):
        x = torch.randn(4, 16, 64, device="cuda", dtype=torch.bfloat16)
        for module, function in ((model, run), (reference, reference)):
            module.zero_grad()
            function(x).backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert mine.grad is not None and mine.grad.isfinite().all()
            if not dropout:
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=3e-2, atol=3e-3)
    assert status("forward").replays >= 4, status("forward").text()
    assert status("backward").replays >= 4, status("backward").text()


def test_a_compiled_optimizer() -> None:
    model = Net().cuda()
    reference = copy.deepcopy(model)
    run = compiled(model)
    mine, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=True) for m in (model, reference))
    step = compiled(mine.step)
    for _ in range(8):
        x = torch.randn(32, 64, device="cuda")
        for module, function in ((model, run), (reference, reference)):
            module.zero_grad()
            function(x).backward()
        step()
        theirs.step()
        same(list(model.parameters()), list(reference.parameters()))
    assert status("inference").replays >= 5, status("inference").text()


def test_a_cache_that_is_written_to_at_every_step() -> None:
    def decode(
        x: torch.Tensor, position: torch.Tensor, cache: torch.Tensor, w: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k = torch.tanh(x @ w)
        cache.index_copy_(1, position, k[:, None])
        weights = torch.softmax((cache * k[:, None]).sum(-1), -1)
        return (weights[..., None] * cache).sum(1), position + 1

    run = compiled(decode)
    w = torch.randn(32, 32, device="cuda") / 6
    states: list[list[Any]] = []
    for _ in range(2):
        torch.manual_seed(1)
        zeros = torch.zeros(2, 12, 32, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
        states.append([torch.randn(2, 32, device="cuda"), zeros[1], zeros[0]])
    for _ in range(12):
        for state, function in zip(states, (run, decode), strict=True):
            state[:2] = function(*state, w)
        same(states[0], states[1])
    assert status().replays >= 8, status().text()
