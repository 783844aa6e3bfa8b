"""Matmuls by cuBLASLt in series, against a library that computes on the host."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_blas import FakeBlas
from fake_gpu import FakeDriver
from polyfuse.base.errors import KernelLaunchError
from polyfuse_triton.launch.series import EPILOGUES
from requirements import needs_gcc
from series_subject import Subject

pytestmark = needs_gcc
BF16, F16 = torch.bfloat16, torch.float16
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "relu": torch.relu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@pytest.fixture(scope="module")
def blas(tmp_path_factory: pytest.TempPathFactory) -> FakeBlas:
    return FakeBlas(tmp_path_factory.mktemp("blas"))


@pytest.fixture
def subject(driver: FakeDriver, blas: FakeBlas, library: Path, tmp_path: Path) -> Subject:
    blas.behave()
    return Subject(driver, library, tmp_path, matmuls=str(blas.path))


def rows_of(
    left: torch.Tensor, right: torch.Tensor, bias: int | None = None, activation: str = ""
) -> tuple[Any, ...]:
    """A series of a kernel and a matmul of inputs 1 and 2 with a bias in input 3, whose result is slot 5."""
    batches, (rows, depth), columns = left.shape[0], left.shape[1:], right.shape[2]

    def operand(slot: int, x: torch.Tensor) -> tuple[Any, ...]:
        first = x.stride(1) == 1
        return (slot, 0, first, x.stride(2 if first else 1), x.stride(0))

    out = (5, 0, False, columns, rows * columns)
    dtype = str(left.dtype).removeprefix("torch.")
    sizes = (batches, rows, columns, depth)
    return (
        ("memory", 4, 64),
        ("launch", "one", (0, 4, "n")),
        ("tensor", 5, (batches, rows, columns), (rows * columns, columns, 1), left.dtype),
        ("matmul", dtype, sizes, activation, out, operand(1, left), operand(2, right), bias),
        ("free", 4),
    )


def join(subject: Subject, rows: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
    return subject.join(*rows, inputs=4, slots=6, returns=(5,))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("batches", [1, 3])
def test_layouts_and_epilogues(subject: Subject, blas: FakeBlas, dtype: torch.dtype, batches: int) -> None:
    torch.manual_seed(0)
    bias = torch.randn(24).to(dtype)
    for transposed in ((False, False), (True, False), (False, True), (True, True)):
        left = torch.randn(batches, 16, 40).to(dtype)
        right = torch.randn(batches, 40, 24).to(dtype)
        if transposed[0]:
            left = left.transpose(1, 2).contiguous().transpose(1, 2)
        if transposed[1]:
            right = right.transpose(1, 2).contiguous().transpose(1, 2)
        for activation in ACTIVATIONS if batches == 1 else ("",):
            for given in (None, (3, 0)) if batches == 1 else (None,):
                call = join(subject, rows_of(left, right, given, activation))
                (found,) = call([torch.zeros(64), left, right, bias, 5])
                wanted = left.float() @ right.float() + (bias.float() if given else 0)
                torch.testing.assert_close(
                    found.float(), ACTIVATIONS[activation](wanted), rtol=1e-2, atol=1e-2
                )
    assert subject.reported == [] and set(EPILOGUES) == set(ACTIVATIONS)


def test_an_algorithm_is_asked_for_once(subject: Subject, blas: FakeBlas) -> None:
    left, right = torch.randn(1, 16, 8).to(BF16), torch.randn(1, 8, 32).to(BF16)
    asked, calls, living = blas.asked, blas.calls, blas.living
    blas.behave(workspace=4096)
    call = join(subject, rows_of(left, right))
    for _ in range(3):
        call([torch.zeros(64), left, right, None, 5])
    assert (blas.asked - asked, blas.calls - calls) == (1, 3)
    # its memory is taken for a call and given back
    assert subject.allocator.sizes.count(4096) == 3 and not subject.allocator.held
    assert blas.living == living + 4
    del call
    gc.collect()
    assert blas.living == living


def test_what_the_library_does_not_compute_is_left_to_torch(subject: Subject, blas: FakeBlas) -> None:
    left, right = torch.randn(1, 16, 8).to(BF16), torch.randn(1, 8, 32).to(BF16)
    call = join(subject, rows_of(left, right))
    away = torch.randn(1, 16 * 8 + 1).to(BF16)[:, 1:].view(1, 16, 8)
    assert call([torch.zeros(64), away, right, None, 5]) == ("each",)
    call([torch.zeros(64), left, right, None, 5])
    blas.behave(refuse=True)
    refused = join(subject, rows_of(left, right))
    asked = blas.asked
    for _ in range(2):
        assert refused([torch.zeros(64), left, right, None, 5]) == ("each",)
    assert blas.asked == asked + 1 and subject.reported == ["each"] * 3


def test_a_graph_of_the_users_has_what_was_asked_for_before(
    subject: Subject, driver: FakeDriver, blas: FakeBlas
) -> None:
    left, right = torch.randn(1, 16, 8).to(BF16), torch.randn(1, 8, 32).to(BF16)
    call = join(subject, rows_of(left, right))
    driver.capture(True)
    assert call([torch.zeros(64), left, right, None, 5]) == ("each",)
    driver.capture(False)
    call([torch.zeros(64), left, right, None, 5])
    driver.capture(True)
    try:
        call([torch.zeros(64), left, right, None, 5])
    finally:
        driver.capture(False)
    assert subject.reported == ["each"]


def test_errors(subject: Subject, blas: FakeBlas) -> None:
    left, right = torch.randn(1, 16, 8).to(BF16), torch.randn(1, 8, 32).to(BF16)
    call = join(subject, rows_of(left, right))
    blas.behave(fail=13)
    with pytest.raises(KernelLaunchError, match=r"a matmul of 16 by 8 by 32 \(status 13\)"):
        call([torch.zeros(64), left, right, None, 5])
    blas.behave(fail=3)
    with pytest.raises(torch.OutOfMemoryError, match="status 3"):
        call([torch.zeros(64), left, right, None, 5])
    assert not subject.allocator.held
    blas.behave()
    call([torch.zeros(64), left, right, None, 5])


def test_without_the_library_no_series_has_matmuls(driver: FakeDriver, library: Path, tmp_path: Path) -> None:
    subject = Subject(driver, library, tmp_path)
    left, right = torch.randn(1, 16, 8).to(BF16), torch.randn(1, 8, 32).to(BF16)
    assert subject.launcher.join(subject.plan(*rows_of(left, right))) is None


def test_what_the_launcher_of_an_older_package_does_not_know(subject: Subject) -> None:
    part = ("part", 3, 2, 4, (2,), (1,), BF16)
    rows = (("launch", "one", (0, 1, "n")), ("tensor", 2, (8,), (1,), BF16), part)
    plan = subject.plan(*rows, inputs=2, slots=4, returns=(3,))
    call = subject.launcher.join(plan)
    assert call is not None
    (found,) = call([torch.zeros(64), torch.zeros(64), 5])
    assert found.data_ptr() == subject.made[-1].data_ptr() + 8 and found.shape == (2,)
    subject.launcher._rows -= {"part"}
    assert subject.launcher.join(plan) is None
