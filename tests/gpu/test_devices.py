"""Streams, several devices, addresses, memory and waiting: what only a real device shows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.gpu
SEED = 3

two_devices = pytest.mark.usefixtures("two_gpus")


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = torch.compile(
        function, backend="polyfuse", dynamic=False, options={"strict": True, **options}
    )
    return found


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w), -1) + x.sum()


def inputs(device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(256, 256, device=device), torch.randn(256, 256, device=device)


def test_nothing_waits_for_the_device() -> None:
    x, w = inputs()
    scale = torch.tensor(2.0)
    run = compiled(lambda x, w, scale: model(x, w) * scale)
    run(x, w, scale)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = run(x, w, scale + 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(y, model(x, w) * 3, rtol=1e-4, atol=1e-4)


def test_work_goes_to_the_stream_of_the_caller() -> None:
    x, w = inputs()
    run = compiled(model)
    run(x, w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # the main stream sees nothing of this until it waits
        torch.cuda._sleep(4_000_000_000)
        x.mul_(2)
        y = run(x, w)
    done = torch.cuda.Event()
    done.record(side)
    assert not done.query()
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(y, model(x, w), rtol=1e-4, atol=1e-4)


def test_gradients_on_a_side_stream() -> None:
    x, w = inputs()
    w.requires_grad_()
    run = compiled(model)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (grad,) = torch.autograd.grad(run(x, w).sum(), w)
    torch.cuda.current_stream().wait_stream(side)
    (expected,) = torch.autograd.grad(model(x, w).sum(), w)
    torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("start", [0, 1, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_at_odd_addresses(start: int, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        y.add_(1)
        return x * 2 + y, (x.float() * y).sum()

    run = compiled(function)
    for first in (0, start):
        mine = torch.arange(20_000, device="cuda").remainder(91).to(dtype) / 32
        theirs = mine.clone()
        args = [(t[first : first + 9_000], t[10_000 + first : 19_000 + first]) for t in (mine, theirs)]
        torch.testing.assert_close(run(*args[0]), function(*args[1]), rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(mine, theirs)
    assert len(last_reports()) == 1


def test_a_number_of_the_processor_among_tensors_of_the_device() -> None:
    x, _ = inputs()
    numbers = torch.tensor(2.5), torch.tensor(3), torch.tensor(True), torch.tensor(1.5, dtype=torch.float64)

    def function(x: torch.Tensor, a: Any, b: Any, c: Any, d: Any) -> Any:
        return x * a + b, torch.where(c, x, a), x * d

    actual, expected = compiled(function)(x, *numbers), function(x, *numbers)
    torch.testing.assert_close(actual, expected)


def test_tensors_come_and_go_between_device_and_processor() -> None:
    def function(x: torch.Tensor) -> Any:
        near = (x + 1).cpu()
        return near * 2, (near + 1).to("cuda") * x, (x * 3).to("cpu", torch.float64)

    x, _ = inputs()
    for actual, expected in zip(compiled(function)(x), function(x), strict=True):
        assert actual.device == expected.device
        torch.testing.assert_close(actual, expected)


@two_devices
def test_a_device_that_is_not_the_current_one() -> None:
    x, w = inputs("cuda:1")
    w.requires_grad_()
    y = compiled(model)(x, w)
    (grad,) = torch.autograd.grad(y.sum(), w)
    assert torch.cuda.current_device() == 0 and y.device == x.device
    expected = model(x, w)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), w)[0], rtol=1e-3, atol=1e-3)


@two_devices
def test_one_function_on_each_device_in_turn() -> None:
    run = compiled(model)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x, w = inputs(device)
        torch.testing.assert_close(run(x, w), model(x, w), rtol=1e-4, atol=1e-4)


@two_devices
def test_one_graph_on_two_devices() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        far = torch.softmax(x, -1).to("cuda:1") * y
        return far.relu().sum(-1), far.to("cuda:0") + x

    x, _ = inputs("cuda:0")
    y, _ = inputs("cuda:1")
    for actual, expected in zip(compiled(function)(x, y), function(x, y), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@two_devices
def test_training_of_one_graph_on_two_devices() -> None:
    """Layers on both devices, forward and backward each one graph, kernels on both sides of the transfer."""

    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(64, 128, device="cuda:0")
            self.second = torch.nn.Linear(128, 32, device="cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            near = torch.nn.functional.gelu(self.first(x))
            far = torch.softmax(self.second(near.to("cuda:1")).float(), -1)
            return far.square().mean() + near.mean().to("cuda:1")

    model = Halves()
    reference = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(3):
        x = torch.randn(50, 64, device="cuda:0")
        for module, function in ((model, run), (reference, reference)):
            module.zero_grad()
            function(x).backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert mine.grad is not None and mine.grad.device == mine.device
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    devices = {launch.backend for report in last_reports() for launch in report.launches}
    assert devices == {"triton"} and torch.cuda.current_device() == 0


@two_devices
def test_random_numbers_of_each_device() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.nn.functional.dropout(x, 0.5), torch.rand_like(y) + y

    x, y = torch.ones(1 << 16, device="cuda:0"), torch.zeros(1 << 16, device="cuda:1")
    run = compiled(function)
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append([t.clone() for _ in range(2) for t in run(x, y)])
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
    dropped, uniform, *others = drawn[0]
    assert abs((dropped > 0).float().mean().item() - 0.5) < 0.02 and abs(uniform.mean().item() - 0.5) < 0.02
    assert not torch.equal(dropped, others[0]) and not torch.equal(uniform, others[1])


def test_the_peak_of_memory_is_not_above_eager_mode() -> None:
    layers = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(6))
    ).to("cuda")
    x = torch.randn(4096, 1024, device="cuda")

    def peak(function: Callable[..., Any]) -> int:
        function(x).sum().backward()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(x).sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    expected = peak(layers)
    assert peak(compiled(layers)) <= expected * 1.02


def test_half_precision_chosen_by_autocast() -> None:
    x, w = inputs()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.layer_norm(x @ w, (256,)).float()

    torch.testing.assert_close(compiled(function)(x, w), function(x, w), rtol=3e-2, atol=3e-2)


def test_calls_from_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    run = compiled(model)
    pairs = [inputs() for _ in range(8)]
    run(*pairs[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: run(*pair), pairs))
    for pair, y in zip(pairs, found, strict=True):
        torch.testing.assert_close(y, model(*pair), rtol=1e-4, atol=1e-4)


def test_results_do_not_depend_on_the_run() -> None:
    x = torch.randn(8, 1_000_003, device="cuda")
    run = compiled(lambda x: (x.sum(-1), x.sum(), x.var(-1), torch.softmax(x, -1)))
    first = run(x)
    for _ in range(3):
        for a, b in zip(run(x), first, strict=True):
            assert torch.equal(a, b)
