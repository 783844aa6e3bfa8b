"""One compiled graph for sizes from 1 to 8192: how many graphs and programs that takes, and its results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import polyfuse
from new_process import as_in_a_new_process
from requirements import needs_gcc

pytestmark = needs_gcc

SIZES = (8192, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 50, 64, 100, 127, 128, 200, 256, 300, 500, 513)
SIZES += (1000, 1023, 1024, 2048, 4096, 6000)


class Attention(nn.Module):
    """A block of attention behind a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        found = torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v
        return x + self.out(found.transpose(1, 2).reshape(batch, length, width))


def check(function: Callable[[Tensor], Tensor], shape: Callable[[int], tuple[int, ...]], most: int) -> None:
    """Run a function at all sizes up to one, compiled from the first; compare with eager mode and count."""
    polyfuse.reset()
    torch._dynamo.utils.counters.clear()
    sizes = [n for n in SIZES if n <= most]
    assert len(sizes) == 30 or most < 8192
    # the sums of thousands of elements differ in their last digits
    compiled = torch.compile(function, backend="polyfuse", dynamic=True, options={"graph_cache": False})
    with torch.no_grad():
        for n in sizes:
            x = torch.randn(shape(n), generator=torch.Generator().manual_seed(n))
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    counts = polyfuse.metrics()
    assert counts.graphs <= 2 < counts.programs <= 2 + 4 * (len(shape(1)) == 2) + 12 * (len(shape(1)) > 2)


def test_a_reduction_over_the_dynamic_axis():
    check(lambda x: torch.softmax(x * 2, -1), lambda n: (3, n), 8192)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"),
    (
        ("sum of columns", 8192),
        ("sum of rows", 8192),
        ("mlp", 8192),
        ("layer norm", 8192),
        ("attention", 512),
    ),
)
def test_functions(name: str, most: int) -> None:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    norm, attention = nn.LayerNorm(24), Attention().eval()
    functions: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], tuple[int, ...]]]] = {
        "sum of columns": (lambda x: x.exp().sum(0), lambda n: (n, 24)),
        "sum of rows": (lambda x: x.exp().sum(-1), lambda n: (n, 24)),
        "mlp": (mlp, lambda n: (n, 16)),
        "layer norm": (norm, lambda n: (n, 24)),
        "attention": (attention, lambda n: (2, n, 16)),
    }
    check(*functions[name], most)


@pytest.mark.slow
def test_training_and_sizes_ahead():
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1))
    polyfuse.reset()
    options = {"graph_cache": False, "sizes": [3, 500]}
    compiled = torch.compile(model, backend="polyfuse", dynamic=True, options=options)
    for n in (64, 3, 500, 5000, 2):
        grads: list[Tensor] = []
        for run in (compiled, model):
            x = torch.randn(n, 8, generator=torch.Generator().manual_seed(n), requires_grad=True)
            run(x).sum().backward()
            assert x.grad is not None
            grads.append(x.grad)
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
        # forward and backward, each with the sizes ahead, and from 5000 on with one more
        assert polyfuse.metrics().programs == (6 if n in (64, 3, 500) else 8)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_data_decide_choose_the_program_of_the_next_call(tmp_path, monkeypatch):
    def f(x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return (rows * 2).sum(0) + rows.shape[0]

    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    for made in ([1, 2, 2, 2, 3], [1, 2, 2, 2, 3]):  # the second time, from the graph cache
        as_in_a_new_process()
        compiled = torch.compile(f, backend="polyfuse", fullgraph=True, options={"graph_cache": True})
        for rows, programs in zip((3000, 3000, 2000, 5, 5), made):
            x = torch.randn(4000, 3).index_fill(1, torch.tensor(0), -1.0)
            x[:rows, 0] = 1
            torch.testing.assert_close(compiled(x), f(x), rtol=1e-3, atol=1e-2)
            assert polyfuse.metrics().programs == programs
    assert polyfuse.metrics().cache_hits == 1


@pytest.mark.slow
def test_few_rows_have_programs_of_their_own_where_kernels_are_measured() -> None:
    """What is fastest for eight rows computes eight for two."""
    polyfuse.reset()
    layer = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))
    options = {"gemm": "fastest", "graph_cache": False}
    compiled = torch.compile(layer, backend="polyfuse", options=options)
    with torch.no_grad():
        for rows in (8, 2, 3, 4, 5, 7, 8, 9):
            x = torch.randn(rows, 24)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)
    assert polyfuse.metrics().programs == 4  # of 2, 3 to 4, 5 to 8 and 9 to 15 rows


def test_without_classes_there_is_one_program():
    polyfuse.reset()
    options = {"graph_cache": False, "size_classes": False}
    compiled = torch.compile(lambda x: x.sum(-1), backend="polyfuse", dynamic=True, options=options)
    for n in (4, 400, 4000):
        torch.testing.assert_close(compiled(torch.ones(2, n)), torch.full((2,), float(n)))
    assert polyfuse.metrics().programs == 1
