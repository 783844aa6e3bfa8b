"""Recordings allocate where it was planned: pools have fewer gaps, and whatever happens nothing overlaps."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from recorded import compiled, status
from torch import nn

from fake_allocator import FakeAllocations, FakeAllocator
from fake_graphs import FakeDevice
from polyfuse.runtime.devices.graphs import Event
from polyfuse.runtime.graphs import addresses, guided, recording
from polyfuse.runtime.graphs.addresses import Busy, Request, aligned, make_plan
from polyfuse.runtime.graphs.guided import Guide, Text, watch

KB = 1024
STEP = 64 * KB

MEMORY: list[FakeAllocator] = []
"""What the library allocates from."""


@torch.library.custom_op("polyfuse_test::library", mutates_args=())
def library(sizes: list[int], workspace: int) -> list[torch.Tensor]:
    made = [MEMORY[-1].tensor(size) for size in sizes]
    if workspace:
        MEMORY[-1].tensor(workspace)
    return made


class Program:
    """A random program, the same at every run: what its text and a library allocate, and when it lets go.
    Its inputs are let go of on the way, and its results stay.
    """

    def __init__(self, seed: int, inputs: int, results: float, steps: int = 24) -> None:
        choose = random.Random(seed)
        self.namespace: dict[str, Any] = {"empty_strided_cpu": self.allocate}
        self.steps: list[tuple[str, Any]] = []
        alive: list[Any] = [("input", i) for i in range(inputs)]
        for k in range(steps):
            if choose.random() < 0.3:
                sizes = [KB * choose.randrange(4, 48) for _ in range(choose.randrange(1, 4))]
                self.steps.append(("library", (k, sizes, choose.choice((0, 16 * KB)))))
                made = [(k, n) for n in range(len(sizes))]
            else:
                self.steps.append(("text", (k, KB * choose.randrange(1, 64))))
                made = [(k, 0)]
            alive += [one for one in made if choose.random() > results]
            while len(alive) > 5:
                self.steps.append(("drop", alive.pop(choose.randrange(len(alive)))))
        self.steps += [("drop", one) for one in alive]

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return MEMORY[-1].tensor(size[0])

    def __call__(self, args: list[Any]) -> list[torch.Tensor]:
        there: dict[Any, Any] = {("input", i): value for i, value in enumerate(args)}
        args.clear()
        for kind, what in self.steps:
            if kind == "text":
                there[what[0], 0] = self.namespace["empty_strided_cpu"]((what[1],), (1,), torch.uint8)
            elif kind == "library":
                k, sizes, workspace = what
                for n, made in enumerate(library(sizes, workspace)):
                    there[k, n] = made
                del made
            else:
                del there[what]
        return list(there.values())


def recorded(
    program: Program, pool: FakeAllocator, args: list[Any], run: Any, allocations: FakeAllocations
) -> tuple[list[torch.Tensor], Guide | None]:
    """Its results in a pool, and what guided it there."""
    MEMORY.append(pool)
    try:
        if run is None:
            return program(args), None
        released = {
            (t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()): run.released.get(i, run.end)
            for i, t in enumerate(args)
        }
        guide = Guide(run, {}, pool, released, allocations)
        with guide.holding(), Text.of(program.namespace, "cpu").seen(guide.before):
            results = program(args)
        return results, guide
    finally:
        MEMORY.pop()


@pytest.mark.parametrize("seed", range(30))
def test_forward_and_backward_share_a_pool_with_fewer_gaps(seed: int) -> None:
    forward = Program(seed, 0, 0.3)
    outcome = {}
    for by_plan in (False, True):
        ordinary = FakeAllocator()
        allocations, makers = FakeAllocations(ordinary), {}  # type: ignore[var-annotated]
        MEMORY.append(ordinary)
        saved, first = watch(forward, [], Text.of(forward.namespace, "cpu"), (), allocations, makers)
        backward = Program(seed + 1000, len(saved), 0.4)
        args, positions = list(saved), range(len(saved))
        del saved
        text = Text.of(backward.namespace, "cpu")
        results, second = watch(backward, args, text, positions, allocations, makers)
        del results
        MEMORY.pop()
        assert first is not None and second is not None and set(second.released) <= set(positions)
        # each saved value has a time when the backward had let go of it
        assert len(first.needed) == sum(r.last == first.end for r in first.requests), (
            "some saved value is unknown"
        )
        pool = FakeAllocator(base=1 << 41)
        saved, guide = recorded(forward, pool, [], first if by_plan else None, allocations)
        middle, args = pool.mapped, list(saved)
        del saved
        results, other = recorded(backward, pool, args, second if by_plan else None, allocations)
        if by_plan:
            assert guide is not None and other is not None and not guide.strayed and not other.strayed
            assert middle == guide.expected or not guide.limit
            assert pool.mapped == other.expected or not other.limit
        outcome[by_plan] = pool.mapped
        assert len({r.data_ptr() for r in results}) == len(results)
    assert outcome[True] <= outcome[False]


def test_most_pools_are_smaller() -> None:
    smaller = 0
    for seed in range(20):
        program = Program(seed, 0, 0.3, 40)
        ordinary = FakeAllocator()
        allocations = FakeAllocations(ordinary)
        MEMORY.append(ordinary)
        _, run = watch(program, [], Text.of(program.namespace, "cpu"), (), allocations, {})
        MEMORY.pop()
        pools = []
        for what in (None, run):
            pool = FakeAllocator(base=1 << 41)
            recorded(program, pool, [], what, allocations)
            pools.append(pool.mapped)
        assert pools[1] <= pools[0]
        smaller += pools[1] < pools[0]
    assert smaller >= 5


@pytest.mark.parametrize("seed", range(10))
def test_another_program_than_the_one_that_was_watched_is_the_allocators(seed: int) -> None:
    ordinary = FakeAllocator()
    allocations = FakeAllocations(ordinary)
    watched, other = Program(seed, 0, 0.3), Program(seed, 0, 0.3, 30)
    other.steps[10:12] = Program(seed + 7, 0, 0.3, 2).steps[:1]
    MEMORY.append(ordinary)
    _, run = watch(watched, [], Text.of(watched.namespace, "cpu"), (), allocations, {})
    MEMORY.pop()
    pool = FakeAllocator(base=1 << 41)
    other.steps = [step for step in other.steps if step[0] != "drop"]
    results, guide = recorded(other, pool, [], run, allocations)
    assert guide is not None
    assert len({r.data_ptr() for r in results}) == len(results)
    # nothing is held any more
    assert sum(used for _, _, used in pool.blocks()) == len(
        [r for r in results if r.untyped_storage().nbytes() >= pool.least]
    )


@pytest.mark.parametrize("seed", range(6))
def test_what_others_hold_longer_than_planned_is_not_overwritten(seed: int) -> None:
    held: list[torch.Tensor] = []

    class Holding(Program):
        def allocate(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
            made = super().allocate(size, stride, dtype)
            if MEMORY[-1].base == 1 << 41:
                held.append(made)
            return made

    program = Holding(seed, 0, 0.3)
    ordinary = FakeAllocator()
    allocations = FakeAllocations(ordinary)
    MEMORY.append(ordinary)
    _, run = watch(program, [], Text.of(program.namespace, "cpu"), (), allocations, {})
    MEMORY.pop()
    # the fake allocator asserts that nothing overlaps
    results, guide = recorded(program, FakeAllocator(base=1 << 41), [], run, allocations)
    assert guide is not None and not guide.strayed
    count = len(held) + len(results)
    # whoever explains a failure would read where there is no memory
    held.clear()
    results.clear()
    assert count > 10


def test_calls_that_only_the_first_run_makes_are_passed_over() -> None:
    program = Program(9, 0, 0.3)
    ordinary = FakeAllocator()
    allocations = FakeAllocations(ordinary)
    MEMORY.append(ordinary)
    text = Text.of(program.namespace, "cpu")
    _, usual = watch(program, [], text, (), allocations, {})

    def loading(args: list[Any]) -> Any:
        torch.empty(3)
        results = program(args)
        torch.zeros(2).add_(1)
        return results

    _, run = watch(loading, [], text, (), allocations, {})
    MEMORY.pop()
    assert run is not None and usual is not None and len(run.calls) > len(usual.calls)
    outcome = []
    for one in (run, usual):
        pool = FakeAllocator(base=1 << 41)
        _, guide = recorded(program, pool, [], one, allocations)
        assert guide is not None and not guide.strayed
        outcome.append((pool.mapped, guide.missed, guide.limit))
    assert outcome[0] == outcome[1] and outcome[0][2]


def test_calls_of_higher_order_operators_are_calls() -> None:
    run_and_save = torch.ops.higher_order.run_and_save_rng_state
    seen: list[Any] = []
    with Text({}, ()).seen(seen.append):
        state, made = run_and_save(torch.ops.aten.rand.default, [3], device="cpu")
        again = torch.ops.higher_order.run_with_rng_state(
            state, torch.ops.aten.rand.default, [3], device="cpu"
        )
    assert torch.equal(made, again)
    found = [op for op in seen if "rng" in str(op)]
    assert found == [run_and_save, torch.ops.higher_order.run_with_rng_state]


def test_a_busy_allocator_is_not_watched() -> None:
    program = Program(1, 0, 0.3)
    ordinary = FakeAllocator()
    MEMORY.append(ordinary)
    busy = FakeAllocations(ordinary, busy=True)
    results, run = watch(program, [], Text.of(program.namespace, "cpu"), (), busy, {})
    MEMORY.pop()
    assert run is None and results
    assert program.namespace["empty_strided_cpu"] == program.allocate


def test_a_view_of_an_input_counts_as_the_input() -> None:
    space: dict[str, Any] = {"empty_strided_cpu": lambda *_: MEMORY[-1].tensor(8 * KB)}

    def program(args: list[Any]) -> list[Any]:
        a, b, c = args
        args.clear()
        view = a[1:]
        del a, b
        space["empty_strided_cpu"]((1,), (1,), torch.uint8)
        del view
        space["empty_strided_cpu"]((1,), (1,), torch.uint8)
        return [c]

    ordinary = FakeAllocator()
    MEMORY.append(ordinary)
    inputs = [ordinary.tensor(8 * KB) for _ in range(3)]
    for others_hold in (True, False):
        args = list(inputs)
        if not others_hold:
            inputs.clear()
        _, run = watch(program, args, Text.of(space, "cpu"), (0, 1, 2), FakeAllocations(ordinary), {})
        assert run is not None
        first, second = (run.requests[k].first for k in (-2, -1))
        assert run.released[1] < first < run.released[0] < second and 2 not in run.released
    MEMORY.pop()


class Pretending(FakeAllocations):
    """As if each call had allocated something that the second call after it no longer holds."""

    @contextmanager
    def watch(self) -> Iterator[Any]:
        with super().watch() as watched:
            yield watched
        events: list[Event] = []
        for k, event in enumerate(watched.events):
            events += [event, Event("allocation", k + 1, (k % 5 + 1) * 8 * KB)]
            if k > 1 and k % 7:
                events.append(Event("release", k - 1))
        watched.events[:] = events

    def pool(self, handle: Any) -> FakeAllocator:
        return FakeAllocator()


@pytest.mark.parametrize("held", [False, True])
def test_compiled_models_are_watched_and_guided(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    seen: list[Guide] = []

    class CollectedGuide(Guide):
        """Is looked at when all is over."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            seen.append(self)

    monkeypatch.setattr(recording, "Guide", CollectedGuide)
    # whatever the allocator would do
    monkeypatch.setattr(guided, "make_plan", lambda *what: make_plan(*what[:5], lambda o: o.plan is None))
    known = Pretending(FakeAllocator())
    monkeypatch.setattr(device, "allocations", lambda: known, raising=False)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16))
    run, reference = compiled(model), copy.deepcopy(model)
    results: list[tuple[Any, Any]] = []
    for _ in range(8):
        x = torch.randn(5, 16)
        model.zero_grad()
        reference.zero_grad()
        actual, expected = run(x), reference(x)
        actual.square().mean().backward()
        expected.square().mean().backward()
        weights = zip(model.parameters(), reference.parameters(), strict=True)
        pairs = [(p.grad, q.grad) for p, q in weights]
        results += [(actual.detach(), expected.detach()), *(pairs if held else ())]
        for mine, theirs in (*pairs, *results):
            torch.testing.assert_close(mine, theirs)
    assert status("backward").replays >= 2
    assert len(seen) >= 2 and any(guide.limit for guide in seen)
    assert not any(guide.strayed for guide in seen)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_overlaps_that_is_in_use_at_a_time(seed: int) -> None:
    choose = random.Random(seed)
    end = choose.randrange(6, 40)
    groups, first = [], 0
    while first < end:
        group = []
        for _ in range(choose.choice((1, 1, 1, 3))):
            first += 1
            last = choose.choice((end + 5, choose.randrange(first + 1, end + 5)))
            group.append(Request(choose.randrange(1, 5000), first, last, choose.randrange(3)))
        groups.append(group)
    busy = [Busy(1024, 2560, 0, choose.randrange(1, end + 2))] if seed % 3 else []
    mapped = 8192 if busy else 0
    groups = [[Request(r.nbytes, group[0].first, r.last) for r in group] for group in groups]
    outcome = make_plan(groups, busy, mapped, 512, 1)
    assert outcome is not None
    plan = outcome.plan
    if plan is None:
        return
    everything = list(busy)
    for starts, group in zip(plan.starts, groups, strict=True):
        for start, request in zip(starts, group, strict=True):
            assert start % addresses.ALIGNMENT == 0
            one = Busy(start, start + aligned(request.nbytes), request.first, request.last)
            assert not any(
                one.first < o.last and o.first < one.last and one.low < o.high and o.low < one.high
                for o in everything
            )
            everything.append(one)
    assert plan.limit >= max(one.high for one in everything)


def test_what_a_backward_needs_longest_lies_below() -> None:
    groups = [[Request(512, k + 1, 9, needed)] for k, needed in enumerate((2, 8, 5))]
    # as the order of needs is what counts
    outcome = make_plan(groups, [], 0, 512, 1, lambda o: o.ranges[1][0] * 2 + o.ranges[2][0])
    assert outcome is not None and outcome.plan is not None and outcome.plan.starts == ((1024,), (0,), (512,))


def test_very_many_allocations_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[Request(1000, 1, 4)], [Request(3000, 2, 5)], [Request(2000, 3, 6)]]
    monkeypatch.setattr(addresses, "MOST", 2)
    assert make_plan(groups, [], 0, 512, 1) is None
    assert make_plan([], [], 0, 512, 1) is None
