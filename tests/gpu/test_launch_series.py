"""Series of launches on a real device: torch's allocator, streams and graphs of the user's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.base.settings import Settings
from polyfuse.compiler.session import session_for
from polyfuse.runtime.launching import memory_functions
from polyfuse.runtime.module import CompiledModule
from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)
pytestmark = pytest.mark.gpu


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def layers(count: int = 3, width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width) for _ in range(count))).to("cuda")


def compiled(function: Callable[..., Any], joining: bool = True, **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    chosen = {"launch_series": joining, "gemm": options.pop("gemm", "generated")}
    return torch.compile(function, backend="polyfuse", options=chosen, **options)


def tables() -> list[tuple[Any, ...]]:
    """The tables of every series of the programs there are."""
    spaces = [o.namespace for o in gc.get_objects() if type(o) is CompiledModule]
    return [row for space in spaces for row in space.get("SERIES", ())]


def joined() -> list[bool]:
    """Of every series of the programs there are, whether it is one call."""
    spaces = [o.namespace for o in gc.get_objects() if type(o) is CompiledModule]
    return ["PyCapsule" in repr(space[row[0]]) for space in spaces for row in space.get("SERIES", ())]


@pytest.fixture(autouse=True)
def _no_programs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfuse.program.series.LEAST", 2)
    torch.compiler.reset()
    gc.collect()


def test_torch_has_functions_for_memory() -> None:
    session_for(Settings.resolve())  # finds the plugin that answers for the device
    assert all(memory_functions("cuda"))


@torch.no_grad()
def test_results_and_peaks_are_those_of_single_launches() -> None:
    model = layers()
    x = torch.randn(128, 64, device="cuda")
    peaks, results = [], []
    for series in (False, True):
        run = compiled(model, series)
        for _ in range(3):
            results.append(run(x))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results.append(run(x))
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert torch.cuda.memory_allocated() - before == x.nbytes
        if series:
            assert joined() and all(joined())
    assert peaks[1] <= peaks[0]
    for result in results[1:]:
        assert torch.equal(result, results[0])
    torch.testing.assert_close(results[0], model(x), rtol=1e-3, atol=1e-3)


def test_gradients() -> None:
    model = layers()
    run = compiled(lambda x: model(x).square().mean())
    for _ in range(4):
        x = torch.randn(32, 64, device="cuda", requires_grad=True)
        wanted = torch.autograd.grad(model(x).square().mean(), [x, *model.parameters()])
        found = torch.autograd.grad(run(x), [x, *model.parameters()])
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert joined() and all(joined())


@torch.no_grad()
def test_any_size_by_one_program() -> None:
    model = layers()
    run = compiled(model, dynamic=True)
    for rows in (3, 50, 7, 128, 1000, 0, 64):
        x = torch.randn(rows, 64, device="cuda")
        torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_streams_and_graphs_of_the_users() -> None:
    model = layers()
    x = torch.randn(128, 64, device="cuda")
    run = compiled(model)
    for _ in range(3):
        expected = run(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = run(x)
    stream.synchronize()
    assert torch.equal(found, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, run(x))
    assert all(joined())
    # what was launched is still there when nobody has the program any more
    wanted = model(x)
    del run
    torch.compiler.reset()
    gc.collect()
    graph.replay()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_librarys_matmuls(dtype: torch.dtype) -> None:
    model = layers(4, 128).to(dtype)
    run = compiled(lambda x: model(x).float().square().mean(), gemm="library")
    x = torch.randn(16, 128, 128, device="cuda", dtype=dtype, requires_grad=True)
    given = [x, *model.parameters()]
    wanted = torch.autograd.grad(model(x).float().square().mean(), given)
    found = [torch.autograd.grad(run(x), given) for _ in range(5)]
    kinds = [row[0] for table in tables() for row in table[-1]]
    assert joined() and all(joined()) and kinds.count("matmul") == 4 * 2 * 3
    for one in found:
        torch.testing.assert_close(one, wanted, rtol=0.05, atol=2e-3)
    assert all(map(torch.equal, found[-1], found[-2]))


@torch.no_grad()
def test_a_librarys_matmuls_in_graphs_and_batches() -> None:
    weights = [torch.randn(4, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)]

    def products(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight * 0.1)
        return x

    run, x = compiled(products, gemm="library"), torch.randn(4, 100, 64, device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        found = run(x)
    assert joined() and all(joined())
    torch.testing.assert_close(found, products(x), rtol=0.05, atol=0.02)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = run(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(recorded, run(x))
