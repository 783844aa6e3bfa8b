"""Training steps on a device whose graphs are called without AOTAutograd's steps around them: hooks, streams,
threads, graphs that are used again, and wrappers of modules, recorded and not.
"""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from recorded_on_device import Net, compiled, same, status

pytestmark = pytest.mark.gpu

STEPS = {"runtime_wrapper", "_runtime_wrapper", "_backward_impl"}
"""What AOTAutograd runs around a graph."""


@pytest.fixture(params=[False, True], ids=["called", "recorded"])
def recorded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def used_again() -> Iterator[None]:
    """Backwards that leave what is saved as it is, as graphs need that are used again."""
    with functorch_config.patch({"donated_buffer": False}):
        yield


def pair(recorded: bool) -> tuple[nn.Module, Callable[..., Any], nn.Module]:
    """A model, what is compiled of it, and its twin in eager mode."""
    torch.manual_seed(0)
    model = Net().cuda()
    return model, compiled(model, device_graphs=recorded, strict=True), copy.deepcopy(model)


def batch(rows: int = 32) -> torch.Tensor:
    return torch.randn(rows, 64, device="cuda")


def clear(*models: nn.Module) -> None:
    for model in models:
        model.zero_grad()


def alike(model: nn.Module, twin: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        same(mine.grad, theirs.grad)


def replayed(recorded: bool, least: int = 3) -> None:
    for kind in ("forward", "backward") if recorded else ():
        assert status(kind).replays >= least, status(kind).text()


@contextlib.contextmanager
def steps_of_torch() -> Iterator[list[str]]:
    """Python functions of AOTAutograd's module for calls that run meanwhile, in any thread."""
    found: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("_aot_autograd/runtime_wrappers.py"):
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_steps_without_those_of_torch(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for _ in range(6):
        x = batch()
        clear(model, twin)
        with steps_of_torch() as found:
            loss = run(x)
        loss.backward()
        twin(x).backward()
        alike(model, twin)
        del loss
    assert not STEPS.intersection(found), found
    replayed(recorded)


def test_hooks_of_parameters_and_results(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    seen: dict[nn.Module, list[float]] = {model: [], twin: []}
    for module in (model, twin):
        for parameter in module.parameters():
            parameter.register_hook(lambda gradient: gradient * 2)
            parameter.register_post_accumulate_grad_hook(
                lambda p, module=module: seen[module].append(float(p.grad.double().sum()))
            )
    for _ in range(6):
        x = batch().requires_grad_()
        y = x.detach().clone().requires_grad_()
        clear(model, twin)
        for function, given, module in ((run, x, model), (twin, y, twin)):
            loss = function(given)
            loss.register_hook(lambda gradient: gradient * 3)
            loss.backward()
            assert len(seen[module]) == len(list(module.parameters()))
            del loss
        alike(model, twin)
        same(x.grad, y.grad)
        torch.testing.assert_close(sorted(seen[model]), sorted(seen[twin]), rtol=1e-2, atol=1e-2)
        for found in seen.values():
            found.clear()
    replayed(recorded)


def test_optimizers_that_step_within_the_backward(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for module in (model, twin):
        for parameter in module.parameters():

            def step(p: torch.Tensor) -> None:
                assert p.grad is not None
                with torch.no_grad():
                    p.sub_(p.grad, alpha=0.1)
                p.grad = None

            parameter.register_post_accumulate_grad_hook(step)
    for _ in range(8):
        x = batch()
        run(x).backward()
        twin(x).backward()
        same(list(model.parameters()), list(twin.parameters()))
    replayed(recorded)


def test_saved_values_on_the_host_meanwhile(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for number in range(6):
        x = batch()
        clear(model, twin)
        saved: Any = torch.autograd.graph.save_on_cpu() if number > 2 else contextlib.nullcontext()
        with saved:
            loss = run(x)
        loss.backward()
        del loss
        twin(x).backward()
        alike(model, twin)


def test_streams_of_the_caller(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for number in range(8):
        x = batch()
        clear(model, twin)
        first, second = streams if number % 2 else reversed(streams)
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            loss = run(x)
            if number < 4:
                loss.backward()
        second.wait_stream(first)
        if number >= 4:
            with torch.cuda.stream(second):
                loss.backward()
        torch.cuda.synchronize()
        del loss
        twin(x).backward()
        alike(model, twin)
    replayed(recorded)


@pytest.mark.usefixtures("used_again")
def test_a_graph_that_is_used_again(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for _ in range(6):
        x = batch()
        clear(model, twin)
        for function in (run, twin):
            loss = function(x)
            loss.backward(retain_graph=True)
            loss.backward()
            del loss
        alike(model, twin)


def test_two_graphs_whose_backwards_come_in_turn(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for number in range(8):
        xs = [batch(), batch()]
        clear(model, twin)
        for function in (run, twin):
            losses = [function(x) for x in xs]
            if number % 2:
                losses.reverse()
            losses[0].backward()
            losses[1].backward()
            del losses
        alike(model, twin)


def test_backwards_in_threads(recorded: bool) -> None:
    pairs = [pair(recorded) for _ in range(2)]
    for _ in range(6):
        xs = [batch(), batch()]
        losses = [run(x) for (_, run, _), x in zip(pairs, xs, strict=True)]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del losses, threads
        for (model, _, twin), x in zip(pairs, xs, strict=True):
            twin(x).backward()
            alike(model, twin)
            clear(model, twin)


def test_sizes_in_turn_and_inference_between(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for rows in (32, 48, 32, 48, 32, 48, 32, 32):
        x = batch(rows)
        clear(model, twin)
        with torch.no_grad():
            same(run(x), twin(x))
        run(x).backward()
        twin(x).backward()
        alike(model, twin)


def test_casts_around_some_calls(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for number in range(8):
        x = batch()
        clear(model, twin)
        for function in (run, twin):
            with torch.autocast("cuda", torch.bfloat16, enabled=bool(number % 2)):
                loss = function(x)
            loss.backward()
            del loss
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=5e-2, atol=5e-3)


def test_checkpoints_around_it(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for _ in range(6):
        x = batch().requires_grad_()
        y = x.detach().clone().requires_grad_()
        clear(model, twin)
        for function, given in ((run, x), (twin, y)):
            loss = checkpoint(function, given, use_reentrant=False)
            loss.backward()
            del loss
        alike(model, twin)
        same(x.grad, y.grad)


def test_parameters_that_are_exchanged(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for number in range(8):
        if number in (3, 5):
            with torch.no_grad():
                for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                    mine.data = mine.data.clone() * 0.5
                    theirs.data = theirs.data.clone() * 0.5
        x = batch()
        clear(model, twin)
        run(x).backward()
        twin(x).backward()
        alike(model, twin)


def test_gradients_that_are_asked_for(recorded: bool) -> None:
    model, run, twin = pair(recorded)
    for _ in range(6):
        x = batch().requires_grad_()
        y = x.detach().clone().requires_grad_()
        found: list[Sequence[torch.Tensor]] = []
        for function, given, module in ((run, x, model), (twin, y, twin)):
            wanted = [given, *module.parameters()]
            found.append(torch.autograd.grad(function(given), wanted))
        same(found[0], found[1])
    replayed(recorded)


@pytest.fixture
def alone() -> Iterator[None]:
    """A world of one rank."""
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("how", ["fsdp2, layers", "fsdp2, model", "ddp"])
def test_sharded_and_replicated_modules_of_one_rank(recorded: bool, how: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Layers().cuda()
    twin = copy.deepcopy(model)
    options = {"device_graphs": recorded}
    run: Any
    if how == "ddp":
        run = torch.compile(
            nn.parallel.DistributedDataParallel(model, device_ids=[0]), backend="polyfuse", options=options
        )
    else:
        for layer in model.layers:
            if how == "fsdp2, layers":
                layer.compile(backend="polyfuse", options=options)
            fully_shard(layer)
        fully_shard(model)
        run = model
        if how == "fsdp2, model":
            run = torch.compile(model, backend="polyfuse", options=options)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, twin)]
    for _ in range(8):
        x = batch()
        for function, optimizer in zip((run, twin), optimizers, strict=True):
            optimizer.zero_grad()
            function(x).backward()
            optimizer.step()
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            full = getattr(mine, "full_tensor", lambda mine=mine: mine)()
            torch.testing.assert_close(full, theirs, rtol=2e-3, atol=2e-3)
