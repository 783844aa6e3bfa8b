"""Scratch of kernels in the plan of a program's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.program import Scratch, memory_plan, plan, python_text, with_scratch
from polyfuse.program.steps import (
    Allocate,
    AssertFinite,
    ExternStep,
    Free,
    LaunchKernel,
    MakeView,
    Observe,
    Reuse,
)
from polyfuse.runtime import load
from polyfuse.schedule.result import Launch, Schedule
from program_builder import Builder, add_one

BYTES = 4096


def chain(seen: list[torch.Tensor], launches: int = 3, *names: str) -> Builder:
    """Launches one after the other that fill their scratch before they compute."""

    def needy(out: torch.Tensor, x: torch.Tensor, scratch: torch.Tensor) -> None:
        seen.append(scratch)
        scratch.fill_(255)
        add_one(out, x)

    b = Builder()
    previous = b.tensor("x", (8, 8))
    for i in range(launches):
        name = names[i] if i < len(names) else f"b{i}"
        b.launch(needy, [b.buffer(name, (8, 8))], [previous], kernel="needy")
        previous = name
    b.output(previous)
    return b


def planned(b: Builder, size: int = BYTES, zeroed: str = "") -> Schedule:
    schedule = b.schedule()
    wanted = Scratch(size, zeroed)
    kernels = {(s.backend, s.kernel): wanted for s in schedule.steps if isinstance(s, Launch)}
    return with_scratch(schedule, kernels)


def run(b: Builder, x: torch.Tensor, zeroed: str = "", **options: Any) -> torch.Tensor:
    program = plan(planned(b, zeroed=zeroed), Settings(**options))
    kernels = {k.name: b.functions[k.launches[0]] for k in program.kernels}
    result: torch.Tensor = load(python_text(program), kernels, b.objects)([x])[0]
    return result


@pytest.mark.parametrize("options", ({}, {"reuse_buffers": False}, {"memory_pools": True}))
def test_each_launch_gets_memory_of_its_own_behind_its_operands(options):
    seen: list[torch.Tensor] = []
    x = torch.randn(8, 8)
    torch.testing.assert_close(run(chain(seen), x, **options), x + 3)
    assert [(one.dtype, one.shape) for one in seen] == [(torch.uint8, (BYTES,))] * 3


def counting(seen: list[int], leaves: int) -> Builder:
    """Launches that look at their scratch, use all of it, and leave it with some content."""

    def looks(out: torch.Tensor, x: torch.Tensor, scratch: torch.Tensor) -> None:
        seen.append(int(scratch.sum()))
        scratch.fill_(leaves)
        add_one(out, x)

    b = Builder()
    previous = b.tensor("x", (64, 64))
    for i in range(4):
        b.launch(looks, [b.buffer(f"b{i}", (64, 64))], [previous], kernel="looks")
        previous = f"b{i}"
    b.output(previous)
    return b


@pytest.mark.parametrize("options", ({}, {"reuse_buffers": False}, {"memory_pools": True}))
def test_it_is_zero_for_each_launch_where_kernels_want_that(options):
    """Whoever had the memory before, and whatever the launch before left there."""
    seen: list[int] = []
    x = torch.randn(64, 64)
    for _ in range(3):
        dirt = [torch.full((BYTES,), 255, dtype=torch.uint8) for _ in range(8)]
        del dirt
        torch.testing.assert_close(run(counting(seen, 255), x, "launch", **options), x + 4)
    assert seen == [0] * 12


@pytest.mark.parametrize("options", ({}, {"reuse_buffers": False}, {"memory_pools": True}))
def test_it_is_zeroed_once_for_kernels_that_leave_it_zero(options):
    seen: list[int] = []
    x = torch.randn(64, 64)
    torch.testing.assert_close(run(counting(seen, 0), x, "program", **options), x + 4)
    assert seen == [0] * 4
    steps = plan(planned(counting([], 0), zeroed="program"), Settings(**options)).steps
    assert sum(isinstance(s, ExternStep) and s.op == "aten.zero_.default" for s in steps) == 1
    assert len({s.operands[-1] for s in steps if isinstance(s, LaunchKernel)}) == 1


def test_it_is_allocated_once_handed_on_and_released():
    steps = plan(planned(chain([])), Settings()).steps
    launches = [s.operands[-1] for s in steps if isinstance(s, LaunchKernel)]
    assert launches == ["scratch_0", "scratch_1", "scratch_2"]
    made = [s for s in steps if isinstance(s, Allocate) and s.dtype == "uint8"]
    assert [(s.name, s.size) for s in made] == [("scratch_0", (BYTES,))]
    assert [(s.new, s.old) for s in steps if isinstance(s, Reuse) and s.new.startswith("scratch")] == [
        ("scratch_1", "scratch_0"),
        ("scratch_2", "scratch_1"),
    ]
    # what is released at the end goes with the return
    assert not any("scratch_0" in s.names for s in steps if isinstance(s, Free))
    alone = plan(planned(chain([])), Settings(reuse_buffers=False)).steps
    assert any("scratch_0" in s.names for s in alone if isinstance(s, Free))


def test_in_a_pool_it_is_a_part_of_that():
    steps = plan(planned(chain([])), Settings(memory_pools=True)).steps
    (pool,) = [s for s in steps if isinstance(s, Allocate) and s.dtype == "uint8"]
    views = [s.view for s in steps if isinstance(s, MakeView) and s.name.startswith("scratch")]
    assert [(v.buffer, v.size) for v in views] == [(pool.name, (BYTES,))] * 3


def test_the_peak_counts_it():
    b = chain([])
    without = memory_plan(b.schedule(), Settings()).peak
    assert memory_plan(planned(b), Settings()).peak == without + BYTES


def test_nobody_looks_at_what_is_in_it():
    program = plan(planned(chain([])), Settings(nan_asserts=True), observe=True)
    names = {s.name for s in program.steps if isinstance(s, (AssertFinite, Observe))}
    assert names and not any(name.startswith("scratch") for name in names)


def test_names_of_the_graph_stay_its_own():
    seen: list[torch.Tensor] = []
    x = torch.randn(8, 8)
    b = chain(seen, 3, "scratch_0", "scratch_1")
    torch.testing.assert_close(run(b, x), x + 3)
    assert len(seen) == 3 and set(planned(b).graph.buffers) >= {"scratch_0", "scratch_1", "scratch_2"}


def test_aligned_arguments_are_distinguished_from_it():
    b = chain([], 1)
    (step,) = planned(b).steps
    assert isinstance(step, Launch)
    aligned = tuple(replace(arg, aligned=True) for arg in step.kernel.args)
    step = replace(step, kernel=replace(step.kernel, args=aligned), alignment=16)
    program = plan(replace(planned(b), steps=(step,)), Settings())
    assert program.inputs[0].alignment == 16


def test_without_any_the_schedule_is_the_same():
    schedule = chain([]).schedule()
    assert with_scratch(schedule, {}) == schedule and planned(chain([]), 0) == schedule
