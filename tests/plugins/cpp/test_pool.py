"""The pool of threads of programs in which kernels alone compute: who takes shares, which programs use it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import cpp_kernels
from polyfuse.base.settings import Settings, child_environment
from polyfuse.runtime.launching import alone
from polyfuse.torch_compat.bindings import tensor_data_ptr_address
from polyfuse_cpp.bindings import load_library
from polyfuse_cpp.threads.source import PoolSource
from polyfuse_cpp.toolchain import find_toolchain

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the pool of threads is for Linux: elsewhere kernels use OpenMP's"
)

SHARE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(two_threads: None) -> Callable[..., None]:
    """`polyfuse_share`, called without Python's lock."""
    address = PoolSource(find_toolchain(), Settings()).share()
    found: Callable[..., None] = ctypes.CFUNCTYPE(None, ctypes.c_int, SHARE, ctypes.c_void_p)(address)
    return found


@pytest.mark.parametrize("of", [1, 2, 3, 70])
def test_each_share_runs_once(run: Callable[..., None], of: int) -> None:
    taken: list[tuple[int, int]] = []
    share = SHARE(lambda _, at, count: taken.append((at, count)))
    for _ in range(20):
        taken.clear()
        run(of, share, None)
        assert sorted(taken) == [(at, of) for at in range(of)]


def test_callers_at_once_share_the_threads(run: Callable[..., None]) -> None:
    sums = [0] * 4

    def call(number: int) -> None:
        def add(_: int, at: int, of: int) -> None:
            sums[number] += 1  # the interpreter's lock is held

        share = SHARE(add)
        for _ in range(50):
            run(4, share, None)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [200] * 4


def test_a_caller_does_the_shares_of_threads_that_do_not_come(run: Callable[..., None]) -> None:
    """A thread of the pool is held in its share until all others are done, whoever does them."""
    begun, others_done, taken = threading.Event(), threading.Event(), []

    def share(_: int, at: int, of: int) -> None:
        if at == 0:
            assert begun.wait(30)
        if at == 1:
            begun.set()
            assert others_done.wait(30)
        taken.append(at)
        if len(taken) == 5:
            others_done.set()

    held = SHARE(share)
    run(2, SHARE(lambda *_: None), None)
    run(6, held, None)
    assert sorted(taken) == list(range(6)) and taken[-1] == 1


def test_a_forked_child_works_alone(run: Callable[..., None]) -> None:
    done = 0

    def count(_: int, at: int, of: int) -> None:
        nonlocal done
        done += 1

    share = SHARE(count)
    run(2, share, None)
    child = os.fork()
    if not child:
        done = 0
        run(3, share, None)
        os._exit(0 if done == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_kernel_has_a_form_with_threads_of_the_pool(two_threads: None) -> None:
    k = cpp_kernels.KernelBuilder({"x0": 1 << 20})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("neg", s.load("a", k["x0"])))
    kernel = cpp_kernels.compiled(k.build())
    a = torch.randn(1 << 20)
    for form in (kernel, alone(kernel), alone(kernel)):
        o = torch.zeros(1 << 20)
        form(a, o)
        assert torch.equal(o, -a)
    assert alone(kernel) is not kernel and alone(print) is print


def test_a_form_stays_what_it_is_where_its_library_is_opened_again(two_threads: None) -> None:
    """Two programs may have kernels of one library, each its own objects for it."""
    jobs: list[int] = []
    job = ctypes.CFUNCTYPE(None, ctypes.c_int, SHARE, ctypes.c_void_p)

    def share(of: int, run: Callable[..., None], work: int) -> None:
        jobs.append(of)
        for at in range(of):
            run(work, at, of)

    pool = job(share)
    address = ctypes.cast(pool, ctypes.c_void_p).value or 0
    k = cpp_kernels.KernelBuilder({"x0": 1 << 20})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("abs", s.load("a", k["x0"])))
    path = cpp_kernels.compiled(k.build()).__self__.path  # type: ignore[attr-defined]
    a, o = torch.randn(1 << 20), torch.zeros(1 << 20)
    usual, again = (
        next(iter(load_library(path, tensor_data_ptr_address(), lambda: address).values())) for _ in range(2)
    )
    forms = [alone(usual), alone(again), usual]
    for form in forms:
        form(a, o)
    assert jobs == [2, 2] and torch.equal(o, a.abs())


PROGRAM = """
import os, sys, torch
from torch import nn
import polyfuse_cpp.threads.source as source

def block():
    window = nn.Conv2d(16, 16, 3, padding=1)
    return nn.Sequential(window, nn.ReLU(), nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1))

model = nn.Sequential(*(block() for _ in range(5))).eval()
x = torch.randn(1, 16, 96, 96)
with torch.no_grad():
    compiled = torch.compile(model, backend="polyfuse", options={"freezing": True})
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
print(len(source._LOADED))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "loaded"), [(1, 0), (2, 1), (8, 1)])
def test_a_program_of_kernels_uses_it(threads: int, loaded: int) -> None:
    """With one thread, the library is not even built. Channels fill vectors, or a library would convolve."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**child_environment(), "OMP_NUM_THREADS": str(threads)},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert found.stdout.split()[-1] == str(loaded)
