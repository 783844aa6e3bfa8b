"""Hand-written Triton kernels in a compiled model, on a real device."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

triton = pytest.importorskip("triton", reason=TRITON)

from hand_written_kernels import add_kernel, scale_kernel, tuned_add_kernel  # noqa: E402

pytestmark = pytest.mark.gpu


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    n = x.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=128)
    return out


@pytest.mark.parametrize("dynamic", [False, True])
def test_fused_around(dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x.sin() + 1, y * 2, torch.empty_like(x)).relu() - y

    run = torch.compile(fn, backend="polyfuse", dynamic=dynamic)
    for size in (1000, 1000, 64, 4097):
        x, y = torch.randn(size, device="cuda"), torch.randn(size, device="cuda")
        torch.testing.assert_close(run(x, y), fn(x, y))


def test_inputs_are_written_directly() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        scale_kernel[(8,)](x, 3.0, x.numel(), BLOCK=128)
        return x + 1

    run = torch.compile(fn, backend="polyfuse")
    for _ in range(3):
        mine = torch.randn(1000, device="cuda")
        theirs = mine.clone()
        torch.testing.assert_close(run(mine), fn(theirs))
        torch.testing.assert_close(mine, theirs)


def test_configurations() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        tuned_add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
        return out + 1

    run = torch.compile(fn, backend="polyfuse")
    for size in (1000, 5000):
        x, y = torch.randn(size, device="cuda"), torch.randn(size, device="cuda")
        torch.testing.assert_close(run(x, y), fn(x, y))


@pytest.mark.usefixtures("two_gpus")
def test_a_device_other_than_the_current_one() -> None:
    run = torch.compile(lambda x, y: add(x, y, torch.empty_like(x)) + 1, backend="polyfuse")
    x, y = torch.randn(1000, device="cuda:1"), torch.randn(1000, device="cuda:1")
    torch.testing.assert_close(run(x, y), x + y + 1)


def test_an_operator_made_of_kernels() -> None:
    @torch.library.triton_op("polyfuse_gpu_tests::added", mutates_args={})
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        torch.library.wrap_triton(add_kernel)[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
        return out

    run = torch.compile(lambda x, y: added(x * 2, y) + 1, backend="polyfuse")
    x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    torch.testing.assert_close(run(x, y), x * 2 + y + 1)
