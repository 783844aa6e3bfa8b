"""Recording and replaying on a real device: what ordinary memory cannot show.

The bookkeeping is tested in `tests/unit/runtime`, on a made-up device that does all the harm a real one may
do.
"""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports
from recorded_on_device import affine, compiled, inputs, same, status
from requirements import TRITON

pytestmark = pytest.mark.gpu


def test_replays_give_what_eager_mode_gives() -> None:
    run = compiled(affine)
    for _ in range(6):
        x, w = inputs()
        result = run(x, w)
        same(result, affine(x, w))
        del result
    assert status().replays == 5, status().text()


def test_a_graph_of_the_users_own_outlives_what_was_compiled() -> None:
    value = torch.randn(1000, device="cuda")
    compiled = torch.compile(lambda x: torch.relu(x * 2 + 1), backend="polyfuse")
    compiled(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(value)
    del compiled
    torch.compiler.reset()
    gc.collect()
    value.copy_(torch.randn(1000))
    graph.replay()
    torch.testing.assert_close(found, torch.relu(value * 2 + 1))


def test_results_that_are_held_stay_as_they_are() -> None:
    run = compiled(affine)
    held = []
    for _ in range(8):
        x, w = inputs()
        held.append((run(x, w), affine(x, w)))
    for actual, expected in held:
        same(actual, expected)


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
    [report] = [r for r in last_reports() if r.recording is not None]
    assert report.sizes is not None and report.recording is not None
    # 1024 is a multiple of 8, the other sizes are not
    assert [report.recording.recordings, *(s.recordings for s in report.sizes.recordings)] == [1, 5]
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
    triton = pytest.importorskip("triton", reason=TRITON)
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


@pytest.mark.usefixtures("two_gpus")
def test_several_devices_are_not_recorded() -> None:
    run = compiled(lambda x, y: (x + 1, y + 1))
    for _ in range(3):
        x, y = torch.randn(4, device="cuda:0"), torch.randn(4, device="cuda:1")
        same(run(x, y), (x + 1, y + 1))
    assert "it computes on" in status().text()


@pytest.mark.usefixtures("two_gpus")
def test_a_device_other_than_the_current_one() -> None:
    run = compiled(affine)
    for _ in range(4):
        x, w = (t.to("cuda:1") for t in inputs())
        result = run(x, w)
        same(result, affine(x, w))
        del result
    assert status().replays == 3, status().text()


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
