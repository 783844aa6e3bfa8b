"""The Halide backend on a device: the conformance kit, functions against eager mode, streams and threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfuse.compiler.reports.report import last_reports
from polyfuse.testing.pytest_plugin import conformance_tests
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

pytestmark = pytest.mark.gpu
SEED = 11

SECONDS = 600
"""The first test builds and runs all cases."""

test_conformance = conformance_tests(
    "halide", quick=True, device="cuda", jobs=max(1, min(12, (os.cpu_count() or 1) - 2))
)

Function = Callable[..., Any]


def compiled(function: Function, dynamic: bool = False) -> Function:
    return torch.compile(
        function, backend="polyfuse", dynamic=dynamic, options={"backends": ["halide", "interpreter"]}
    )


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


FUNCTIONS: dict[str, Function] = {
    "gelu": lambda x: F.gelu(x * 2 + 1),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sums": lambda x: (x.sum(0), x.sum(1), x.sum()),
    "variance": lambda x: torch.var_mean(x.float(), -1),
    "largest": lambda x: (x.argmax(-1), x.amin(0)),
    "scan": lambda x: x.double().cumsum(-1),
    "transposed": lambda x: x.t().contiguous() + x.t(),
    "joined": lambda x: torch.cat((x.sin(), x.tanh()), -1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_eager_mode(name, dtype):
    function = FUNCTIONS[name]
    for shape in ((300, 517), (1, 64), (2048, 1024)):
        x = random(*shape, dtype=dtype)
        torch.testing.assert_close(
            compiled(function)(x), function(x), atol=2e-2 if dtype == torch.bfloat16 else 2e-4, rtol=2e-2
        )
    launches = [launch for report in last_reports() for launch in report.launches]
    assert launches and all(launch.backend == "halide" for launch in launches)


def test_sizes_may_change_and_be_nothing():
    function = compiled(lambda x: torch.softmax(x, -1) * x.sum(0), dynamic=True)
    for rows, columns in ((7, 33), (130, 1000), (2, 5000), (0, 10), (64, 64)):
        x = random(rows, columns)
        torch.testing.assert_close(function(x), torch.softmax(x, -1) * x.sum(0), atol=1e-4, rtol=1e-4)


def test_gradients_add_up_at_repeated_indices():
    table = random(50, 16).requires_grad_()
    indices = torch.randint(0, 50, (4000,), device="cuda")
    weights = random(4000, 16)

    def loss(table: torch.Tensor) -> torch.Tensor:
        return (F.embedding(indices, table) * weights).sum()

    (wanted,) = torch.autograd.grad(loss(table), table)
    (found,) = torch.autograd.grad(compiled(loss)(table), table)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_launches_go_to_the_current_stream():
    function = compiled(lambda x: (x + 1).exp())
    x = torch.zeros(1 << 22, device="cuda")
    function(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(1.0)
        y = function(x)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(y, torch.full_like(y, float(y[0]))) and abs(float(y[0]) - 7.389056) < 1e-4


def test_launches_are_recorded():
    function = compiled(lambda x: torch.softmax(x, -1))
    x = random(64, 500)
    function(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    x.copy_(random(64, 500))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1), atol=1e-6, rtol=1e-5)


def test_a_thread_that_has_launched_nothing_can_launch():
    function = compiled(lambda x: x * 3 + 1)
    x = torch.ones(1000, device="cuda")
    function(x)
    found: list[torch.Tensor] = []
    worker = threading.Thread(target=lambda: found.append(function(x)))
    worker.start()
    worker.join()
    assert found and torch.equal(found[0], x * 3 + 1)
