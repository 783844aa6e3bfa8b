"""Packages that run on a GPU without Python and without torch, called from C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import polyfuse.aot as aot
from native_runner import NativeResult, call
from packaged_models import in_a_process
from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)
pytestmark = pytest.mark.gpu

F = torch.nn.functional
DRIVER = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}


class Block(torch.nn.Module):
    """A block of a transformer with attention, and an embedding."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.table = torch.nn.Embedding(100, width)
        self.norm, self.last = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.table(tokens)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.last(x))))
        return x, x.argmax(-1), x.float().mean()


class Images(torch.nn.Module):
    """Convolutions, a norm and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(16, 32, 3),
            torch.nn.SiLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(32, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


class Counting(torch.nn.Module):
    """Writes to a buffer of its own and to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> Any:
        self.calls.add_(1)
        total.add_(x)
        return x * self.calls, torch.cat([x, total], 1)


def check(found: NativeResult, expected: Any, tolerance: float) -> None:
    assert not found.error, found.error
    for actual, wanted in zip(found.results, expected, strict=True):
        assert actual is not None
        torch.testing.assert_close(actual, wanted.cpu(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_block_with_attention_of_any_length(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Block().cuda().eval().to(dtype)
    length = torch.export.Dim("length", min=2, max=512)
    tokens = torch.randint(0, 100, (2, 40))
    path = aot.package(
        model, (tokens.cuda(),), path=tmp_path / "block.pf", native=True, dynamic_shapes=({1: length},)
    )
    calls = [(tokens,), (tokens[:, :7].contiguous(),), (torch.randint(0, 100, (2, 333)),)]
    found = call(path, calls, given=True, variables=DRIVER)
    with torch.no_grad():
        for actual, (given,) in zip(found, calls, strict=True):
            x, _, mean = model(given.cuda())
            assert actual.results and actual.results[0] is not None
            check(actual, (x, actual.results[0].argmax(-1), mean), 1e-3 if dtype == torch.float32 else 6e-2)


def test_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Images().cuda().eval(), torch.randn(3, 3, 20, 24)
    path = aot.package(model, (x.cuda(),), path=tmp_path / "images.pf", native=True)
    (found,) = call(path, [(x,)], given=True, variables=DRIVER)
    with torch.no_grad():
        check(found, (model(x.cuda()),), 1e-3)


class Sorting(torch.nn.Module):
    """Rows whose pairs are all compared, of any number, and longer ones."""

    def forward(self, short: torch.Tensor, long: torch.Tensor) -> Any:
        return (
            *short.sort(0, descending=True),
            *long.sort(stable=True),
            *long[:1].topk(700),
            long.topk(7, largest=False).values,
        )


def test_sorted_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=600)
    calls = []
    for count in (9, 500):
        # numbers that differ, so that eager mode has no choice
        long = torch.stack([torch.randperm(5000) for _ in range(3)]).float() - 2000
        long[:, 5] = torch.nan
        calls.append((torch.randperm(count * 3).view(count, 3), long))
    path = aot.package(
        Sorting(),
        tuple(t.cuda() for t in calls[0]),
        path=tmp_path / "sorting.pf",
        native=True,
        dynamic_shapes=({0: rows}, None),
    )
    for actual, given in zip(call(path, calls, given=True, variables=DRIVER), calls, strict=True):
        assert not actual.error, actual.error
        for found, wanted in zip(actual.results, Sorting()(*(t.cuda() for t in given)), strict=True):
            assert found is not None
            torch.testing.assert_close(found, wanted.cpu(), rtol=0, atol=0, equal_nan=True)


def test_threads_share_a_model(tmp_path: Path) -> None:
    model, x = Images().cuda().eval(), torch.randn(3, 3, 20, 24)
    path = aot.package(model, (x.cuda(),), path=tmp_path / "images.pf", native=True)
    (found,) = call(path, [(x,)], given=True, threads=4, variables=DRIVER)
    with torch.no_grad():
        check(found, (model(x.cuda()),), 1e-3)


def test_buffers_and_arguments_are_written_to(tmp_path: Path) -> None:
    x, total = torch.randn(2, 3), torch.randn(2, 3)
    path = aot.package(
        Counting().cuda(), (x.cuda(), total.clone().cuda()), path=tmp_path / "counting.pf", native=True
    )
    (found,) = call(path, [(x, total)], given=True, variables=DRIVER)
    # the runner calls once to learn sizes
    check(found, (x * 2, torch.cat([x, found.inputs[1]], 1)), 1e-6)


def test_an_index_out_of_range_is_an_error(tmp_path: Path) -> None:
    model = torch.nn.Embedding(10, 16).cuda()
    tokens = torch.randint(0, 10, (5,))
    path = aot.package(model, (tokens.cuda(),), path=tmp_path / "table.pf", native=True)
    (found,) = call(path, [(torch.tensor([1, 2, 10, 3, 4]),)], given=True, variables=DRIVER)
    assert "GPU failed" in found.error


def test_tensors_of_the_gpu_are_used_where_they_are(tmp_path: Path) -> None:
    """In a process that has torch: its tensors and its stream, without copies."""
    model, x = Images().cuda().eval(), torch.randn(3, 3, 20, 24)
    path = aot.package(model, (x.cuda(),), path=tmp_path / "images.pf", native=True)
    with torch.no_grad():
        torch.save((x, model(x.cuda()).cpu()), tmp_path / "x.pt")
    script = Path(__file__).with_name("native_in_torch.py").read_text()
    assert in_a_process(script, str(path), str(tmp_path / "x.pt")) == {}
