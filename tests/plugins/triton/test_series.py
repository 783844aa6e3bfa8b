"""Series of launches by the native launcher, against a driver that records what it is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fake_gpu import FakeDriver
from polyfuse.base.errors import KernelLaunchError
from polyfuse.runtime.checks import aligning
from polyfuse.runtime.launching import SeriesPlan
from requirements import needs_gcc
from series_subject import Subject

pytestmark = needs_gcc
ROWS = (
    ("memory", 1, "n*64"),
    ("launch", "one", (0, 1, "n")),
    ("free", 0),
    ("tensor", 2, (4, "n"), ("n", 1), torch.bfloat16),
    ("launch", "two", (1, 2, "8")),
    ("free", 1),
    ("launch", "one", (2, 2, "2*n")),
)


@pytest.fixture
def subject(driver: FakeDriver, library: Path, tmp_path: Path) -> Subject:
    return Subject(driver, library, tmp_path)


def test_launches_memory_and_results(subject: Subject, driver: FakeDriver) -> None:
    series, x = subject.join(*ROWS), torch.zeros(64)
    for n in (5, 9):
        driver.reset(3)
        args = [x, n]
        (result,) = series(args)
        assert args == [] and result is subject.made[-1]
        assert result.shape == (4, n) and result.stride() == (n, 1) and result.dtype is torch.bfloat16
        first, second, third = driver.launches()
        assert [one.symbol for one in (first, second, third)] == ["symbol_one", "symbol_two", "symbol_one"]
        assert {one.stream for one in (first, second, third)} == {0x5000}
        assert first.values == (x.data_ptr(), second.values[0], n)
        assert second.values[1:] == (result.data_ptr(), 8)
        assert third.values == (result.data_ptr(), result.data_ptr(), 2 * n)
        assert [one.grid[0] for one in (first, second, third)] == [-(-n // 4), 2, -(-2 * n // 4)]
        assert subject.allocator.sizes.pop() == 64 * n and not subject.allocator.held
    assert subject.reported == []


def test_views_and_empty_sizes(subject: Subject, driver: FakeDriver) -> None:
    rows = (*ROWS, ("view", 3, 2, ("n", 4), (4, 1)), ("free", 2), ("launch", "two", (3, 3, "n")))
    series, x = subject.join(*rows, returns=(3,)), torch.zeros(64)
    (result,) = series([x, 6])
    assert result.shape == (6, 4) and result.data_ptr() == subject.made[-1].data_ptr()
    driver.reset(3)
    (result,) = series([x, 0])
    assert result.shape == (0, 4)
    # nothing of no elements is launched
    assert [one.symbol for one in driver.launches()] == ["symbol_two"]
    assert not subject.allocator.held


def test_what_it_leaves_to_others(subject: Subject, driver: FakeDriver) -> None:
    """Before anything is done: sizes that no kernel was compiled for, no numbers, and what profiles."""
    series, x = subject.join(*ROWS), torch.zeros(64)
    for given in ([x, 60], [x, 1 << 40], [x, 2.0], [x]):
        assert series(given) == ("each",)
    subject.flags["on"] = True
    assert series([x, 5]) == ("each",)
    assert driver.launches() == [] and subject.reported == ["each"] * 5 and not subject.made


def test_a_failed_launch(subject: Subject, driver: FakeDriver) -> None:
    series, x = subject.join(*ROWS), torch.zeros(64)
    driver.fail(700)
    with pytest.raises(KernelLaunchError, match="kernel one could not be launched: fake words"):
        series([x, 5])
    ((said, number),) = subject.reported
    assert "kernel one" in said and number == 0
    assert not subject.allocator.held
    driver.fail(0)
    series([x, 5])


def test_an_address_that_a_kernel_cannot_read(subject: Subject, driver: FakeDriver) -> None:
    series, x = subject.join(*ROWS), torch.zeros(64)
    with pytest.raises(KernelLaunchError, match="argument in0 of kernel one is no multiple of 16"):
        series([x[1:], 5])
    assert not subject.allocator.held and driver.launches() == []


def test_without_memory_torch_says_so(subject: Subject, driver: FakeDriver) -> None:
    series, x = subject.join(*ROWS), torch.zeros(64)
    subject.allocator.full = True
    with pytest.raises(torch.OutOfMemoryError, match="nothing left"):
        series([x, 5])
    subject.allocator.full = False
    series([x, 5])
    assert not subject.allocator.held and len(driver.launches()) == 3


def test_without_functions_for_memory_it_is_tensors(
    driver: FakeDriver, library: Path, tmp_path: Path
) -> None:
    subject = Subject(driver, library, tmp_path, device_memory=False)
    (result,) = subject.join(*ROWS)([torch.zeros(64), 5])
    assert result.shape == (4, 5) and len(driver.launches()) == 3


def test_kernels_of_others_are_not_joined(subject: Subject) -> None:
    plan = SeriesPlan("s", 1, (), 1, (), (("launch", "k", (0,)),), {"k": print}, print, print, print, print)
    assert subject.launcher.join(plan) is None
    strange = replace(plan, kernels=subject.kernels, symbols=("n",), rows=(("memory", 0, "n ** 2"),))
    assert subject.launcher.join(strange) is None


def test_addresses_are_looked_at_in_one_call(subject: Subject) -> None:
    memory = torch.zeros(64)
    round_, odd, half = memory, memory[1:], memory[2:]
    look = subject.launcher.alignment_check([0, 3], 16)
    assert look([round_, odd, None, memory[4:]])
    assert not look([odd, round_, None, round_])
    assert not look([round_, round_, None, torch.nn.Parameter(half)])
    assert subject.launcher.alignment_check([0], 8)([half]) and subject.launcher.alignment_check([], 16)([])
    # what is known of them is nothing: the program looks itself, and says what is wrong
    assert not look([round_, odd, None, torch.zeros(4).to_sparse()])
    with pytest.raises(IndexError):
        look([round_])


def test_programs_take_the_look_that_a_launcher_offers(subject: Subject) -> None:
    memory, seen = torch.zeros(64), []
    call = aligning(lambda args: seen.append([a.data_ptr() % 16 for a in args]), ((0, 16, False, True),))
    for x in (memory, memory[1:], memory[4:]):
        call([x])
    assert seen == [[0]] * 3 and "polyfuse look" in str(call.args[1].__self__)  # type: ignore[attr-defined]
