"""Long rows that programs of a cluster hold or walk together, on a real device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polyfuse_triton.backend as triton_backend
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source
from polyfuse_triton.build.meta import KernelMeta

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("starts_clusters")]
SEED = 11

Function = Callable[..., Any]
LENGTH = 50304


def slope(grad: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    return torch._softmax_backward_data(grad, chances, -1, chances.dtype)


def above_all(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(-1, keepdim=True)


CASES: dict[str, tuple[Function, int]] = {
    "gradient of softmax": (slope, 2),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), 1),
    "largest": (above_all, 1),
}


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clusters of the kernels that are generated meanwhile: none is taken from the graph cache."""
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    found: list[int] = []
    emit = triton_backend.TritonBackend.emit

    def noting(self: Any, kernel: Kernel, config: Config | None = None) -> Source:
        source = emit(self, kernel, config)
        found.append(KernelMeta.parse(source.meta).cluster)
        return source

    monkeypatch.setattr(triton_backend.TritonBackend, "emit", noting)
    return found


@pytest.mark.parametrize("name", CASES)
def test_beside_eager_mode(name: str, clusters: list[int]) -> None:
    function, count = CASES[name]
    args = [torch.randn(2048, LENGTH, device="cuda") for _ in range(count)]
    found = torch.compile(function, backend="polyfuse", dynamic=False)(*args)
    assert max(clusters) == 7
    wanted = function(*(a.double() for a in args))
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < 1e-5


def test_equal_calls_give_equal_results_whatever_runs_beside(clusters: list[int]) -> None:
    compiled = torch.compile(CASES["layer norm"][0], backend="polyfuse", dynamic=False)
    x = torch.randn(2048, LENGTH, device="cuda")
    first = compiled(x)
    assert max(clusters) == 7
    streams = [torch.cuda.Stream() for _ in range(6)]
    results = []
    for _ in range(3):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append((compiled(x) == first).all())
    torch.cuda.synchronize()
    assert all(bool(r) for r in results)


def test_recorded_and_replayed(clusters: list[int]) -> None:
    compiled = torch.compile(above_all, backend="polyfuse", dynamic=False, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2048, LENGTH, device="cuda")
            assert torch.equal(compiled(x), above_all(x))
    assert max(clusters) == 7


def test_nan_reaches_its_row_alone(clusters: list[int]) -> None:
    x = torch.randn(2048, LENGTH, device="cuda")
    x[7, LENGTH - 1] = float("nan")
    found = torch.compile(CASES["layer norm"][0], backend="polyfuse", dynamic=False)(x)
    assert found[7].isnan().all() and not found[:7].isnan().any() and not found[8:].isnan().any()
    assert max(clusters) == 7


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize(("rows", "length"), [(2048, LENGTH), (8192, 32000), (1024, 131072)])
def test_rows_that_are_walked_together(rows: int, length: int, mode: str, clusters: list[int]) -> None:
    """Softmax, with a row of infinities and one with NaN, again and again."""
    compiled = torch.compile(lambda x: torch.softmax(x, -1), backend="polyfuse", dynamic=False, mode=mode)
    x = torch.randn(rows, length, device="cuda") * 5
    x[1], x[2, length - 1] = -torch.inf, torch.nan
    wanted = torch.softmax(x.double(), -1)
    with torch.no_grad():
        found = [compiled(x).clone() for _ in range(4)]
    assert 2 <= max(clusters) <= 8
    assert (found[0] - wanted).nan_to_num().abs().max().item() < 1e-6
    assert torch.equal(found[0].isnan(), wanted.isnan())
    assert all(torch.equal(found[0].nan_to_num(7.0), again.nan_to_num(7.0)) for again in found[1:])
