"""Recording and replaying on a real device: what ordinary memory cannot show.

The bookkeeping is tested in `tests/unit/runtime`, on a made-up device that does all the harm a real one may
do.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.report import last_reports, reset_reports
from polyfuse.runtime.device_graphs import GraphStatus

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(5)
    yield
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()


def compiled(fn: Callable[..., Any], *, dynamic: bool | None = False, **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(
        fn, backend="polyfuse", dynamic=dynamic, options={"device_graphs": True, **options}
    )
    return made


def status(kind: str = "") -> GraphStatus:
    found = [r.recording for r in last_reports() if kind in ("", r.kind)][-1]
    assert found is not None, [r.eager for r in last_reports()]
    return found


def same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).softmax(-1) + 1


def inputs(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 128, device="cuda"), torch.randn(128, 128, device="cuda")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256),
            nn.LayerNorm(256),
            nn.GELU(),
            nn.Linear(256, 256),
            nn.Tanh(),
            nn.Linear(256, 16),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def test_replays_give_what_eager_mode_gives() -> None:
    run = compiled(affine)
    for _ in range(6):
        x, w = inputs()
        result = run(x, w)
        same(result, affine(x, w))
        del result
    assert status().replays == 5, status().text()


def test_results_that_are_held_stay_as_they_are() -> None:
    run = compiled(affine)
    kept = []
    for _ in range(8):
        x, w = inputs()
        kept.append((run(x, w), affine(x, w)))
    for actual, expected in kept:
        same(actual, expected)


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


def test_random_numbers_follow_the_seed() -> None:
    run = compiled(lambda x: nn.functional.dropout(x, 0.5) * 2)
    x = torch.ones(4096, device="cuda")
    for _ in range(3):
        run(x)
    drawn = []
    for _ in range(2):
        torch.manual_seed(11)
        drawn.append([run(x).clone() for _ in range(3)])
    assert status().replays >= 6, status().text()
    for first, second in zip(*drawn, strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(drawn[0][0], drawn[0][1])


def test_random_numbers_are_those_of_eager_mode() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    run = compiled(fn)
    x = torch.zeros(1000, device="cuda")
    for _ in range(2):
        run(x)
    torch.manual_seed(7)
    actual = [run(x).clone() for _ in range(3)]
    torch.manual_seed(7)
    expected = [fn(x) for _ in range(3)]
    same(actual, expected)


def test_memory_does_not_grow() -> None:
    run = compiled(affine)
    x, w = inputs(1024)
    for _ in range(4):
        run(x, w)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        run(x, w)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_sizes_share_memory() -> None:
    """Recordings whose results are dead let others have their memory."""
    run = compiled(lambda x: (x.view(-1, 1) * torch.arange(4096, device=x.device)).cos(), dynamic=True)
    reserved = []
    for extra in range(6):
        x = torch.randn(1024 + extra, device="cuda")
        for _ in range(3):
            run(x)
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert status().recordings == 6, status().text()
    # one result is 16 MiB
    assert reserved[-1] - reserved[1] < 40 << 20


def test_recorded_memory_is_given_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    run = compiled(affine)
    x, w = inputs(4096)
    for _ in range(3):
        run(x, w)
    del run, x, w
    torch._dynamo.reset()
    gc.collect()
    # what is gone is noticed with the next recorded call
    other = compiled(lambda y: y + 1)
    for _ in range(3):
        other(torch.zeros(8, device="cuda"))
    del other
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before <= 64 << 20


def test_another_stream() -> None:
    run = compiled(affine)
    args = inputs()
    for _ in range(3):
        run(*args)
    side = torch.cuda.Stream()
    for number in range(6):
        x, w = inputs(64)
        expected = affine(x, w)
        if number % 2:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                result = run(x, w).clone()
            torch.cuda.current_stream().wait_stream(side)
        else:
            result = run(x, w).clone()
        same(result, expected)


def test_what_cannot_be_recorded_runs_as_it_is() -> None:
    @torch.library.custom_op("polyfuse_gpu_tests::looks", mutates_args=())
    def looks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x * 3

    @looks.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    run = compiled(lambda x: looks(x.abs()) + 1)
    for _ in range(4):
        x = torch.randn(16, device="cuda")
        same(run(x), x.abs() * 2 + 1)
    assert "recording failed" in status().text()
    # the device and its random numbers are as they were
    torch.manual_seed(1)
    first = torch.rand(4, device="cuda")
    torch.manual_seed(1)
    assert torch.equal(first, torch.rand(4, device="cuda"))
    good = compiled(affine)
    for _ in range(3):
        x, w = inputs()
        same(good(x, w), affine(x, w))
    assert status().recordings == 1, status().text()


def waits(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x * 3


def raises(x: torch.Tensor) -> torch.Tensor:
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not now")
    return x * 2


def forks(x: torch.Tensor) -> torch.Tensor:
    """Leaves work on a stream that is not joined again."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().wait_stream(side)
    return y


@pytest.mark.parametrize("fault", [waits, raises, forks])
@pytest.mark.parametrize("driver", [True, False])
def test_a_failure_costs_one_recording(
    fault: Callable[[torch.Tensor], torch.Tensor], driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings made before go on, with their random numbers; others are made; memory is given back."""
    if not driver:
        from polyfuse.torch_compat import cuda_graphs

        monkeypatch.setattr(cuda_graphs, "_begin_again", lambda stream: False)
    name = f"polyfuse_gpu_tests::{fault.__name__}_{driver}".lower()
    op = torch.library.custom_op(name, fault, mutates_args=())
    op.register_fake(torch.empty_like)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    before, bad = compiled(noisy), compiled(lambda x: op(x.abs()) + 1)
    x = torch.zeros(1000, device="cuda")
    for _ in range(3):
        before(x)
    for _ in range(3):
        y = torch.randn(16, device="cuda")
        same(bad(y), y.abs() * 2 + 1)
    assert "recording failed" in status().text()
    after = compiled(lambda x: noisy(x) * 2)
    for _ in range(3):
        after(x)
    assert status().recordings == 1, status().text()
    torch.manual_seed(7)
    actual = [before(x).clone(), after(x).clone(), before(x).clone()]
    torch.manual_seed(7)
    expected = [noisy(x), noisy(x) * 2, noisy(x)]
    same(actual, expected)


def test_inside_a_recording_of_the_user() -> None:
    run = compiled(affine)
    x, w = inputs()
    for _ in range(3):
        run(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(x, w)
    x.normal_()
    graph.replay()
    same(result, affine(x, w))


def test_the_end_of_a_step() -> None:
    run = compiled(affine)
    held: list[torch.Tensor] = []
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        x, w = inputs()
        result = run(x, w)
        same(result, affine(x, w))
        held.append(result)
    assert status().replays == 4, status().text()
    with pytest.raises(RuntimeError, match="earlier step"):
        held[1].sum().item()


def test_a_library_that_keeps_workspaces() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.mm(x, w)
        image = y.view(1, 1, *y.shape)
        return y, torch.nn.functional.conv2d(image, k, padding=1).relu()

    run = compiled(fn)
    k = torch.randn(8, 1, 3, 3, device="cuda")
    for _ in range(6):
        x, w = inputs(128)
        same(run(x, w, k), fn(x, w, k))
        torch.mm(torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda"))
    assert status().replays >= 4, status().text()


def test_hand_written_kernels_are_recorded() -> None:
    triton = pytest.importorskip("triton")
    from hand_written_kernels import add_kernel

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), 64),)](x.sin(), y, out, x.numel(), BLOCK=64)
        return out * 2

    run = compiled(fn)
    for _ in range(5):
        x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
        result = run(x, y)
        same(result, fn(x, y))
        del result
    assert status().replays == 4, status().text()


def test_a_mode_asks_for_it() -> None:
    run = torch.compile(affine, backend="polyfuse", mode="reduce-overhead")
    for _ in range(4):
        x, w = inputs()
        result = run(x, w)
        same(result, affine(x, w))
        del result
    assert status().replays == 3, status().text()


def test_several_devices_are_not_recorded() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two graphics processors")
    run = compiled(lambda x, y: (x + 1, y + 1))
    for _ in range(3):
        x, y = torch.randn(4, device="cuda:0"), torch.randn(4, device="cuda:1")
        same(run(x, y), (x + 1, y + 1))
    assert "it computes on" in status().text()


def test_a_device_other_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two graphics processors")
    run = compiled(affine)
    for _ in range(4):
        x, w = (t.to("cuda:1") for t in inputs())
        result = run(x, w)
        same(result, affine(x, w))
        del result
    assert status().replays == 3, status().text()


def test_recordings_on_two_devices_in_turn() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two graphics processors")
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


def test_profilers_show_the_kernels_of_a_replay() -> None:
    run = compiled(lambda x: torch.softmax(x.sin() * 2, -1))
    x = torch.randn(64, 1000, device="cuda")
    for _ in range(3):
        run(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run(x)
        torch.cuda.synchronize()
    names = {event.name for event in profile.events()}
    assert any("softmax" in name for name in names), names


def test_sizes_beyond_the_limit_run_as_they_are() -> None:
    run = compiled(lambda x: (x * 2).sum(-1), dynamic=True, max_device_graphs=2)
    for size in (5, 6, 7, 8) * 3:
        x = torch.randn(3, size, device="cuda")
        same(run(x), (x * 2).sum(-1))
    assert status().recordings == 2
    assert "beyond the limit" in status().text()


def test_an_input_that_is_written_to() -> None:
    def fn(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x)
        return state.sum()

    run = compiled(fn)
    for reuse in (True, False):
        state = torch.randn(100, device="cuda")
        expected = state.clone()
        for _ in range(5):
            if not reuse:
                state = state.clone()
            x = torch.randn(100, device="cuda")
            same(run(state, x), fn(expected, x))
            same(state, expected)
    assert status().replays >= 7, status().text()


@pytest.mark.parametrize("recorded", [False, True])
def test_checkpoints_draw_the_same_numbers_again(recorded: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(torch.tanh(x @ w), 0.5)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, use_reentrant=False).sum()

    run = compiled(loss, device_graphs=recorded)
    x = torch.eye(64, device="cuda")
    w = torch.full((64, 64), 0.5, device="cuda", requires_grad=True)
    masks = []
    for _ in range(5):
        w.grad = None
        result = run(x, w)
        result.backward()
        assert w.grad is not None
        # an element that was dropped has no gradient, the others have the same one
        kept = w.grad != 0
        same(result, kept.sum() * 2 * torch.tanh(torch.tensor(0.5, device="cuda")))
        masks.append(kept)
        del result
    assert not torch.equal(masks[-1], masks[-2])
    if recorded:
        assert status("forward").replays >= 3, status("forward").text()
        assert status("backward").replays >= 3, status("backward").text()
