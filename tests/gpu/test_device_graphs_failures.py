"""What becomes of the device when a recording fails: nothing that a later one would notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recorded_on_device import affine, compiled, inputs, same, status

pytestmark = pytest.mark.gpu


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
        from polyfuse_cuda import graphs as cuda_graphs

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
