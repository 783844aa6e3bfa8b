"""Recording and replaying programs: results are eager mode's, and nobody's data is overwritten."""

from __future__ import annotations

import gc
import itertools
import threading
import types
from collections.abc import Callable

import pytest
import torch
from recorded import compiled, report, status
from torch.multiprocessing.reductions import StorageWeakRef

from fake_graphs import FakeDevice
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.runtime.graphs import copied, replay
from polyfuse.runtime.graphs import memory as graph_memory
from polyfuse.torch_compat.devices.device_graphs import memory_like

Seen = Callable[[], list[str]]


def affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) + 1


def fresh() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8), torch.randn(8, 8)


def same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected)


def test_the_first_call_runs_the_second_is_recorded_others_are_replays(device: FakeDevice) -> None:
    run = compiled(affine)
    for number in range(5):
        x, w = fresh()
        result = run(x, w)
        same(result, affine(x, w))
        del result
        assert device.recorded == min(number, 1)
        assert device.replays == number
    assert status().text() == "recorded 1 times, 4 calls replayed, 1 not"
    assert len(device.pools) == 1


def test_results_that_are_held_stay_as_they_are(device: FakeDevice) -> None:
    run = compiled(affine)
    inputs = [fresh() for _ in range(8)]
    same([run(*args) for args in inputs], [affine(*args) for args in inputs])
    # one that was handed out before anybody knew stays for good: another recording leaves it alone
    assert device.recorded == 2
    assert "copies" in status().reason
    assert status().plain == 4


def test_a_result_that_another_thread_is_letting_go_of_is_waited_for(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[torch.Tensor] = []

    def moment(seconds: float) -> None:
        # the other thread lets go during the wait, however busy the machine is
        assert 0 < seconds < 0.01
        leaving = threading.Thread(target=held.clear)
        leaving.start()
        leaving.join()

    monkeypatch.setattr(replay, "time", types.SimpleNamespace(sleep=moment))
    run = compiled(affine)
    for _ in range(4):
        x, w = fresh()
        held.append(run(x, w))
        same(run(x, w), affine(x, w))
        held.clear()
    assert status().text() == "recorded 1 times, 7 calls replayed, 1 not"


def test_a_variable_that_is_bound_anew_holds_the_last_result(device: FakeDevice) -> None:
    run = compiled(affine)
    for _ in range(6):
        x, w = fresh()
        held = run(x, w)
        same(held, affine(x, w))
    assert device.replays == 4


def copies_in(device: FakeDevice, run: Callable[..., torch.Tensor], calls: int) -> int:
    """How many of some calls, whose results nobody holds, give copies."""
    found = 0
    addresses = {block.memory.data_ptr() for pool in device.pools for block in pool.blocks}
    for _ in range(calls):
        x, w = fresh()
        result = run(x, w)
        same(result, affine(x, w))
        found += result.data_ptr() not in addresses
        del result
    return found


def test_copies_end_when_nobody_holds_results_any_more(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "LARGE", 1)
    monkeypatch.setattr(copied, "PATIENCES", (8, 16))
    run = compiled(affine)
    held = []
    for before, copies in ((6, 8), (6, 16), (6, 40)):
        held += [(run(x, w), affine(x, w)) for x, w in (fresh() for _ in range(before))]
        assert copies_in(device, run, copies) == copies
    # whoever holds results again gets copies again, and in the end for good
    assert copies_in(device, run, 9) == 9
    same(*zip(*held, strict=True))
    assert status().recordings <= replay.INSTANCES


def test_copies_that_are_needed_now_and_then_go_on(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "LARGE", 1)
    run = compiled(affine)
    held = [(run(x, w), affine(x, w)) for x, w in (fresh() for _ in range(6))]
    plain = status().plain
    for number in range(24):
        x, w = fresh()
        result = run(x, w)
        if number % 4 == 0:
            held.append((result, affine(x, w)))
        del result
    same(*zip(*held, strict=True))
    assert status().plain == plain


def test_copies_end_where_steps_are_marked(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "LARGE", 1)
    steps = itertools.count()
    run = compiled(affine)
    early = [run(*fresh()) for _ in range(6)]
    # from here on every call is a step, so what earlier ones gave is not needed however long it is held
    monkeypatch.setattr(graph_memory, "step_number", lambda: next(steps))
    for _ in range(12):
        x, w = fresh()
        early.append(run(x, w))
        same(early[-1], affine(x, w))
    assert copies_in(device, run, 1) == 0


@pytest.mark.parametrize("hold", [lambda r: r[1:], lambda r: r.detach(), lambda r: r.untyped_storage()])
def test_any_hold_on_the_memory_counts(device: FakeDevice, hold: Callable[[torch.Tensor], object]) -> None:
    run = compiled(affine)
    run(*fresh())
    args = fresh()
    held = hold(run(*args))
    expected = hold(affine(*args))
    for _ in range(3):
        run(*fresh())
    if isinstance(held, torch.Tensor):
        same(held, expected)
    else:
        assert device.replays >= 2


def test_results_that_share_memory_share_it_when_they_are_copied(device: FakeDevice) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x.sin()
        return y, y.view(-1)[3:9], y.t()

    run = compiled(fn)
    held = []
    for _ in range(5):
        x = torch.randn(4, 8)
        got = run(x)
        same(got, fn(x))
        assert got[0].untyped_storage().data_ptr() == got[2].untyped_storage().data_ptr()
        held.append((got, fn(x)))
    for got, expected in held:
        same(got, expected)


def test_results_may_be_written_to(device: FakeDevice) -> None:
    run = compiled(affine)
    for _ in range(5):
        x, w = fresh()
        result = run(x, w)
        same(result, affine(x, w))
        result.mul_(100)
        del result


def test_inputs_that_are_passed_on(device: FakeDevice) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, y[1:], y.view(torch.int32), x + 1

    run = compiled(fn)
    for _ in range(4):
        x, y = torch.randn(3), torch.randn(5, 2)
        got = run(x, y)
        same(got, fn(x, y))
        assert got[0].data_ptr() == x.data_ptr()
        assert got[1].data_ptr() == y[1:].data_ptr()


def test_results_that_are_no_tensors(device: FakeDevice) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int, None]:
        return x * x.shape[0], x.shape[0] * 2, None

    run = compiled(fn, dynamic=True)
    for size in (3, 3, 3, 5, 5, 5, 3):
        x = torch.randn(size)
        same(run(x)[0], fn(x)[0])
        assert run(x)[1:] == fn(x)[1:]
    assert device.recorded == 2


def test_programs_for_other_sizes_say_what_became_of_them(device: FakeDevice) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 0) + 1

    run = compiled(fn, dynamic=True, backends="cpp")
    for size in (3, 3, 3000, 3000, 3000, 3001, 3001):
        x = torch.randn(size)
        same(run(x), fn(x))
    sizes = report().sizes
    assert sizes is not None and (status().recordings, status().replays) == (1, 1)
    assert [(s.recordings, s.replays) for s in sizes.recordings] == [(2, 3)]
    assert f"device graph of other sizes: {sizes.recordings[0].text()}" in explain_graph(report())


class Parameters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.linear(x) + self.seen


@torch.no_grad()
def test_parameters_are_read_where_they_are(device: FakeDevice) -> None:
    model, other = Parameters(), Parameters()
    other.load_state_dict(model.state_dict())
    run = compiled(model)
    for number in range(5):
        x = torch.randn(2, 8)
        result = run(x)
        same(result, other(x))
        del result
        model.linear.weight.mul_(1.5)
        other.linear.weight.mul_(1.5)
        same(model.seen, torch.tensor(number + 1.0))
    assert device.recorded == 1


def moving(shape: tuple[int, int], calls: int) -> None:
    """Run a layer whose weight is at another address at every call."""
    model = torch.nn.Linear(shape[1], shape[0])
    run = compiled(model)
    keep = []
    for _ in range(calls):
        x = torch.randn(2, shape[1])
        result = run(x)
        same(result, torch.nn.functional.linear(x, model.weight, model.bias))
        del result
        keep.append(model.weight.data)
        model.weight.data = torch.randn(shape)


@torch.no_grad()
def test_parameters_that_keep_moving_are_copied(device: FakeDevice, warnings_seen: Seen) -> None:
    moving((4, 8), 9)
    assert device.recorded == 3
    assert status().replays == 8
    assert "is at another address" in status().again
    assert not warnings_seen()


@torch.no_grad()
def test_large_parameters_that_move_are_followed_for_a_while(
    device: FakeDevice, warnings_seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyfuse.runtime.graphs import inputs as graph_inputs

    monkeypatch.setattr(graph_inputs, "MOVING_LIMIT", 100)
    moving((4, 8), 9)
    assert device.recorded == 4
    assert sum("at another address" in w for w in warnings_seen()) == 1


@torch.no_grad()
def test_buffers_that_keep_moving_are_written_to(device: FakeDevice) -> None:
    model = Parameters()
    run = compiled(model)
    for number in range(8):
        x = torch.randn(2, 8)
        model.seen = torch.tensor(float(number))
        result = run(x)
        same(model.seen, torch.tensor(number + 1.0))
        same(result, model.linear(x) + number + 1)
        del result
    assert device.recorded == 3


@torch.no_grad()
def test_parameters_that_move_now_and_then_are_followed_for_good(
    device: FakeDevice, warnings_seen: Seen
) -> None:
    model = torch.nn.Linear(8, 4)
    run = compiled(model)
    keep = []
    for _ in range(7):
        for _ in range(18):
            x = torch.randn(2, 8)
            result = run(x)
            same(result, torch.nn.functional.linear(x, model.weight, model.bias))
            del result
        keep.append(model.weight.data)
        model.weight.data = torch.randn(4, 8)
    assert device.recorded == 7
    assert device.forgotten == 3
    assert not warnings_seen()


@torch.no_grad()
def test_large_inputs_are_read_where_they_are(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.runtime.graphs import inputs as graph_inputs

    monkeypatch.setattr(graph_inputs, "IN_PLACE", 8 * 64 * 4)
    monkeypatch.setattr(graph_inputs, "COPY_LIMIT", 8 * 64 * 4 - 1)
    cache = torch.randn(8, 64)
    run = compiled(lambda cache, x: torch.relu(cache).sum(0) * x)
    for _ in range(4):
        x = torch.randn(64)
        same(run(cache, x), torch.relu(cache).sum(0) * x)
        cache.mul_(-1)
    assert device.recorded == 1 and status().replays == 3


@torch.no_grad()
def test_large_inputs_that_move_are_copied(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.runtime.graphs import inputs as graph_inputs

    monkeypatch.setattr(graph_inputs, "IN_PLACE", 8 * 64 * 4)
    run = compiled(lambda cache: torch.relu(cache).sum(0))
    caches = [torch.randn(8, 64) for _ in range(3)]
    for cache in caches * 2:
        same(run(cache), torch.relu(cache).sum(0))
    assert device.recorded == 2 and status().replays == 5


def test_an_input_that_is_written_to(device: FakeDevice) -> None:
    def fn(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(2).add_(x)
        return state.sum()

    run = compiled(fn)
    for reuse in (True, False):
        state = torch.randn(6)
        for _ in range(5):
            if not reuse:
                state = torch.randn(6)
            theirs, x = state.clone(), torch.randn(6)
            same(run(state, x), fn(theirs, x))
            same(state, theirs)
    # read and written where it is first, then copied there and back
    assert device.recorded == 2
    assert status().replays >= 6


def test_each_set_of_sizes_has_its_recording(device: FakeDevice) -> None:
    run = compiled(affine, dynamic=True)
    w = torch.randn(8, 8)
    for size in (2, 3, 5, 2, 3, 5, 2, 3, 5):
        x = torch.randn(size, 8)
        result = run(x, w)
        same(result, affine(x, w))
        del result
    assert device.recorded == 3
    assert status().replays == 6
    assert len(device.pools) == 1


def test_the_number_of_sizes_is_limited(device: FakeDevice, warnings_seen: Seen) -> None:
    run = compiled(affine, dynamic=True, max_device_graphs=2)
    w = torch.randn(8, 8)
    for size in (2, 3, 5, 7) * 3:
        x = torch.randn(size, 8)
        same(run(x, w), affine(x, w))
    assert device.recorded == 2
    assert sum("max_device_graphs" in w for w in warnings_seen()) == 1


def test_repeated_elements_are_copied_once(device: FakeDevice) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    run = compiled(fn)
    for _ in range(4):
        x = torch.randn(1, 5).expand(3, 5)
        same(run(x), fn(x))
    assert status().recordings == 1


def test_elements_that_share_memory_otherwise_are_not_copied(device: FakeDevice) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    run = compiled(fn)
    for _ in range(4):
        x = torch.randn(8).as_strided((6, 3), (1, 1))
        same(run(x), fn(x))
    assert status().recordings == 0
    assert "share memory" in status().reason


def test_inputs_of_no_use_may_be_anything(device: FakeDevice) -> None:
    def fn(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return x + 1

    run = compiled(fn)
    for _ in range(4):
        x = torch.randn(3)
        same(run(x, torch.randn(9).as_strided((6, 3), (1, 1))), x + 1)
    assert status().replays == 3


def test_empty_inputs(device: FakeDevice) -> None:
    run = compiled(lambda x, y: (x * 2, y + 1, x.sum()))
    for _ in range(4):
        x, y = torch.randn(0, 3), torch.randn(2)
        same(run(x, y), (x * 2, y + 1, x.sum()))


def test_what_one_recording_computes_another_reads_in_place(device: FakeDevice) -> None:
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    for _ in range(5):
        x, w = fresh()
        middle = first(x, w)
        result = second(middle)
        same(middle, affine(x, w))
        same(result, affine(x, w).cos() * 2)
        del middle, result
    assert device.recorded == 2
    assert len(device.pools) == 1
    assert status().replays == 4


def test_what_a_caller_keeps_of_it_is_copied_and_read_anywhere(device: FakeDevice) -> None:
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    held = []
    for _ in range(8):
        x, w = fresh()
        middle = first(x, w)
        result = second(middle)
        same(result, affine(x, w).cos() * 2)
        held.append((middle, affine(x, w)))
        del middle, result
    for got, expected in held:
        same(got, expected)
    assert status().replays >= 4


def test_a_result_of_a_later_recording_survives_an_earlier_one(device: FakeDevice) -> None:
    """What is recorded later may lie over what an earlier recording computes on the way."""
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    for _ in range(3):
        first(*fresh())
        second(torch.randn(4, 8))
    x = torch.randn(4, 8)
    held = second(x)
    args = fresh()
    same(first(*args), affine(*args))
    same(held, x.cos() * 2)
    same(second(x), x.cos() * 2)
    same(held, x.cos() * 2)


def test_memory_that_was_given_up_is_not_relied_on(device: FakeDevice) -> None:
    """The first recording's results were dead when the second was made; now they are held when it runs."""
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    for _ in range(2):
        first(*fresh())
    for _ in range(2):
        second(torch.randn(4, 8))
    args = fresh()
    held = first(*args)
    for _ in range(4):
        x = torch.randn(4, 8)
        same(second(x), x.cos() * 2)
        same(held, affine(*args))


def test_a_recording_made_while_given_up_memory_is_in_use_gets_a_pool_of_its_own(
    device: FakeDevice,
) -> None:
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    for _ in range(2):
        first(*fresh())
    for _ in range(2):
        second(torch.randn(4, 8))
    args = fresh()
    held = first(*args)
    third = compiled(lambda x: x.tan() - 1)
    for _ in range(3):
        x = torch.randn(4, 8)
        same(third(x), x.tan() - 1)
        same(held, affine(*args))
    assert len(device.pools) == 2


def test_a_recording_that_fails_leaves_the_program_as_it_was(device: FakeDevice, warnings_seen: Seen) -> None:
    run = compiled(affine)
    run(*fresh())
    device.fail = RuntimeError("operation not permitted while recording\nmore words")
    for _ in range(3):
        x, w = fresh()
        same(run(x, w), affine(x, w))
    assert device.recorded == 0
    assert "operation not permitted while recording" in status().text()
    assert "more words" not in status().text()
    assert sum("not permitted" in w for w in warnings_seen()) == 1


def test_without_memory_the_call_runs_and_a_later_one_is_recorded(device: FakeDevice) -> None:
    run = compiled(affine)
    for number in range(4):
        device.fail = torch.OutOfMemoryError("no memory left") if number == 1 else None
        args = fresh()
        same(run(*args), affine(*args))
    assert device.recorded == 1 and status().plain == 2, status().text()
    never = compiled(lambda x, w: x @ w - 1)
    for _ in range(6):
        device.fail = torch.OutOfMemoryError("no memory left")
        x, w = fresh()
        same(never(x, w), x @ w - 1)
    assert "OutOfMemoryError: no memory left" in status().text()
    device.fail = None


def test_after_a_failure_earlier_recordings_go_on_and_later_ones_are_elsewhere(device: FakeDevice) -> None:
    functions = affine, lambda x, w: x @ w, lambda x, w: (x @ w).sin()
    good, bad, late = (compiled(fn) for fn in functions)
    for number in range(5):
        if number == 1:
            good(*fresh())
            device.fail = RuntimeError("operation not permitted while recording")
            bad(*fresh())
        for run, fn in zip((good, bad, late), functions, strict=True):
            args = fresh()
            same(run(*args), fn(*args))
    assert device.recorded == 2
    assert len(device.pools) == 2
    assert [{block.number for block in pool.blocks} for pool in device.pools] == [{1}, {2}]


def test_nothing_is_recorded_inside_another_recording(device: FakeDevice) -> None:
    run = compiled(affine)
    device.recording = True
    for _ in range(3):
        x, w = fresh()
        same(run(x, w), affine(x, w))
    assert device.recorded == 0
    device.recording = False
    run(*fresh())
    run(*fresh())
    assert device.recorded == 1


def test_random_numbers_are_drawn_at_every_replay(device: FakeDevice) -> None:
    run = compiled(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(64)
    torch.manual_seed(3)
    got = [run(x).clone() for _ in range(4)]
    assert status().replays == 3
    assert len({tuple(g.tolist()) for g in got}) == 4


def test_inference_mode_and_its_absence_share_recordings(device: FakeDevice) -> None:
    run = compiled(affine)
    for number in range(6):
        x, w = fresh()
        with torch.inference_mode(number % 2 == 0), torch.no_grad():
            result = run(x, w)
            same(result, affine(x, w))
            del result


def test_several_threads(device: FakeDevice) -> None:
    run = compiled(affine)
    run(*fresh())
    run(*fresh())
    wrong: list[str] = []

    def work() -> None:
        for _ in range(5):
            x, w = fresh()
            try:
                same(run(x, w), affine(x, w))
            except Exception as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recordings_go_with_their_program_and_results_stay(device: FakeDevice) -> None:
    run = compiled(affine)
    run(*fresh())
    args = fresh()
    held = run(*args)
    del run
    torch._dynamo.reset()
    gc.collect()
    other = compiled(lambda x: x.cos() * 2)
    for _ in range(4):
        x = torch.randn(4, 8)
        same(other(x), x.cos() * 2)
        same(held, affine(*args))
    assert device.forgotten == 1


def test_memory_given_up_outlives_its_program_while_it_is_held(device: FakeDevice) -> None:
    run = compiled(affine)
    other = compiled(lambda x: x.cos() * 2)
    for _ in range(2):
        run(*fresh())
    for _ in range(2):
        other(torch.randn(4, 8))
    args = fresh()
    held = run(*args)  # in memory that the pool does not know to be in use
    del run
    torch._dynamo.reset()
    gc.collect()
    other(torch.randn(4, 8))
    assert device.forgotten < 2
    same(held, affine(*args))
    del held
    third = compiled(lambda x: x.tan())
    third(torch.randn(3))
    third(torch.randn(3))
    assert device.forgotten == 2


def test_a_step_ends_what_was_handed_out_in_it(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    monkeypatch.setattr("polyfuse.runtime.graphs.memory.step_number", lambda: steps)
    run = compiled(affine)
    held = []
    for _ in range(5):
        steps += 1
        x, w = fresh()
        result = run(x, w)
        same(result, affine(x, w))
        held.append(result)
    # no copies were made for the sake of what is held
    assert status().replays == 4
    assert not status().reason
    with pytest.raises(RuntimeError):
        held[1].data_ptr()
    held[0].data_ptr()
    held[-1].data_ptr()


def test_the_step_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.torch_compat.devices.device_graphs import step_number

    before = step_number()
    torch.compiler.cudagraph_mark_step_begin()
    torch.compiler.cudagraph_mark_step_begin()
    assert step_number() == before + 2


def test_a_mode_asks_for_it(device: FakeDevice) -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x: x.sin() + 1, backend="polyfuse", mode="reduce-overhead")
    for _ in range(3):
        x = torch.randn(5)
        same(run(x), x.sin() + 1)
    assert device.replays == 2


def test_without_a_device_that_records(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    run = compiled(affine)
    for _ in range(2):
        x, w = fresh()
        same(run(x, w), affine(x, w))
    assert status().text() == "not recorded: the work of cpu cannot be recorded"


def test_what_was_not_asked_for_is_not_reported(device: FakeDevice) -> None:
    run = compiled(affine, device_graphs=False)
    run(*fresh())
    run(*fresh())
    assert report().recording is None
    assert device.recorded == 0


def test_memory_of_dead_results_is_used_again(device: FakeDevice) -> None:
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    for _ in range(3):
        first(*fresh())
    for _ in range(2):
        second(torch.randn(4, 8))
    (graph,) = [g for g in device.graphs if g.number == 2]
    (result,) = device.graphs[0].own
    assert result in graph.harmed


def test_memory_of_results_in_use_is_not(device: FakeDevice) -> None:
    first = compiled(affine)
    second = compiled(lambda x: x.cos() * 2)
    first(*fresh())
    held = first(*fresh())
    for _ in range(2):
        second(torch.randn(4, 8))
    (graph,) = [g for g in device.graphs if g.number == 2]
    (result,) = device.graphs[0].own
    assert result.memory.data_ptr() not in {block.memory.data_ptr() for block in graph.harmed}
    del held


def test_inputs_are_copied_to_memory_that_is_the_recordings_own_again(device: FakeDevice) -> None:
    run = compiled(lambda x, y: (torch.relu(x) @ y).sin())
    for _ in range(4):
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        same(run(x, y), (torch.relu(x) @ y).sin())
    (graph,) = device.graphs
    buffers = {a.data_ptr() for a in graph.args if isinstance(a, torch.Tensor)}
    assert len(buffers) == 2
    assert buffers <= {block.memory.data_ptr() for block in graph.harmed}
    # of two inputs and a result of one size, none is there when the result is made
    assert buffers & {block.memory.data_ptr() for block in graph.own}


def test_inputs_that_are_copied_back_are_copied_to_memory_of_their_own(device: FakeDevice) -> None:
    def fn(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(2).add_(x)
        return state.sin()

    run = compiled(fn)
    for _ in range(6):
        state, x = torch.randn(6), torch.randn(6)
        theirs = state.clone()
        same(run(state, x), fn(theirs, x))
        same(state, theirs)
    graph = device.graphs[-1]
    assert device.recorded == 2 and status().replays >= 4
    mine = {block.memory.data_ptr() for block in device.pools[0].blocks}
    assert len({a.data_ptr() for a in graph.args if isinstance(a, torch.Tensor)} & mine) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(6, 8)[1::2, ::2],
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(0, 4),
        lambda: torch.randn(3, 4, dtype=torch.float64),
    ],
)
def test_buffers_have_the_layout_of_what_is_copied(
    device: FakeDevice, make: Callable[[], torch.Tensor]
) -> None:
    run = compiled(lambda x: (x * 2 + 1, x, x[..., 1:]))
    for _ in range(4):
        x = make()
        results = run(x)
        same(results, (x * 2 + 1, x, x[..., 1:]))
        assert results[1].data_ptr() == x.data_ptr() and results[1].stride() == x.stride()


def test_memory_of_a_layout_is_not_written() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        made = memory_like(torch.empty_strided((3, 4), (9, 2)))
        assert (made.shape, made.stride()) == ((3, 4), (9, 2))
        assert made.untyped_storage().nbytes() == 4 * (1 + 2 * 9 + 3 * 2)
        assert memory_like(torch.empty(0, 5)).untyped_storage().nbytes() == 0
        with torch.inference_mode():
            assert not memory_like(torch.empty(3)).is_inference()
    finally:
        torch.use_deterministic_algorithms(False)


def test_inputs_that_are_copied_are_let_go_of_before_the_replay(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compiled(affine)
    for _ in range(2):
        run(*fresh())
    left: list[bool] = []
    (graph,) = device.graphs
    replayed = graph.replay
    monkeypatch.setattr(graph, "replay", lambda: (left.append(gone()), replayed()))
    (recording,) = graph_memory.graph_memory("cpu")._live  # type: ignore[union-attr]
    x, w = fresh()
    args = [x, w]
    storage = StorageWeakRef(x.untyped_storage())

    def gone() -> bool:
        return storage.expired()

    del x, w
    recording.replay(args, copied.CopiedResults())  # type: ignore[attr-defined]
    assert left == [True] and not args
