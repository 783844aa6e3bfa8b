"""Graphs with constants from parameters, found by processes whose parameters hold other numbers."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from graph_caching import again, cache_of_its_own, compiled  # noqa: F401
from new_process import as_in_a_new_process
from polyfuse.cache.graphs import graph_counts
from polyfuse.compiler.graph_cache.record import GraphRecord
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.runtime.frozen import FrozenProgram, FrozenValues
from requirements import needs_gcc

SCRIPT = """
import json, sys, torch
from torch import nn
from torch._dynamo.utils import counters
from polyfuse.cache.graphs import graph_counts
from polyfuse.compiler.graph_cache.record import GraphRecord
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.runtime.frozen import FrozenProgram, FrozenValues

torch.manual_seed(int(sys.argv[1]))
network = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
)
with torch.no_grad():
    for value in (*network.parameters(), *network.buffers()):
        value.copy_(torch.rand(value.shape) + 0.5)
network.eval()
run = torch.compile(network, backend="polyfuse", options={"freezing": True, "strict": True})
with torch.no_grad():
    for size in (4, 4, 7, 9):
        x = torch.randn(size, 3, 8, 8)
        torch.testing.assert_close(run(x), network(x), rtol=1e-4, atol=1e-4)
    network[1].running_var.mul_(3)
    network[0].weight.add_(1)
    torch.testing.assert_close(run(x), network(x), rtol=1e-4, atol=1e-4)
    network.load_state_dict({name: value * 2 for name, value in network.state_dict().items()}, assign=True)
    torch.testing.assert_close(run(x), network(x), rtol=1e-4, atol=1e-4)
counts, traced = graph_counts(), counters["stats"]["unique_graphs"]
print(json.dumps([counts.hits, counts.misses, counts.bypasses, counts.captured, traced]))
"""


class Held(nn.Module):
    """A weight that arithmetic with a constant of the graph reads, in parts."""

    def __init__(self, size: int = 6, factor: float = 0.5) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.randn(size, 5)), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.weight.sigmoid() * torch.tensor([self.factor, 2.0, -1.0, 0.25, 3.0])
        low, high = scaled.topk(2, -1)[0].chunk(2, -1)
        return x @ scaled.t() + (low - high).t()


def run_process(seed: int, folder: Path, capture: bool) -> list[object]:
    environment = {**os.environ, "POLYFUSE_CACHE_DIR": str(folder), "POLYFUSE_GRAPH_CACHE": "1"}
    environment["POLYFUSE_CAPTURE_CACHE"] = str(int(capture))
    script = folder.with_suffix(".py")
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(seed)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("capture", [False, True])
def test_processes_with_other_weights(capture, tmp_path):
    folder = tmp_path / "shared"
    assert run_process(1, folder, capture) == [0, 2, {}, 0, 2]
    # what Dynamo made for all batches was used last, and serves the first of them, too
    assert run_process(2, folder, capture) == ([1, 0, {}, 1, 0] if capture else [2, 0, {}, 0, 2])


@torch.no_grad()
def test_values_are_those_of_the_parameters_at_hand():
    x = torch.randn(4, 5)
    for number in range(3):
        network = Held()
        counts = again(network, x, freezing=True, backends=["interpreter"])
        assert (counts.hits, counts.misses, counts.bypasses) == (number > 0, number == 0, {})
    as_in_a_new_process()
    options = {"freezing": True, "strict": True, "backends": ["interpreter"]}
    run = torch.compile(network, backend="polyfuse", options=options)
    other = copy.deepcopy(network)
    torch.testing.assert_close(run(x), other(x))
    assert graph_counts().hits == 1
    for change in (lambda w: w.mul_(-2), lambda w: w.copy_(torch.rand_like(w))):
        change(network.weight)
        other.load_state_dict(network.state_dict())
        torch.testing.assert_close(run(x), other(x))


@torch.no_grad()
def test_what_values_follow_from_is_part_of_the_key():
    network, x = Held(), torch.randn(4, 5)
    options: dict[str, object] = {"freezing": True, "backends": ["interpreter"]}
    assert again(network, x, **options).misses == 1
    assert again(Held(factor=0.75), x, **options).misses == 1
    assert again(Held(7), x, **options).misses == 1
    assert again(Held().double(), x.double(), **options).misses == 1
    assert again(network, x, **{**options, "freezing": False}).misses == 1
    weight = network.weight.detach().clone()
    del network.weight
    network.weight = weight  # no parameter: it may be another tensor at each call
    assert again(network, x, **options).misses == 1


def test_large_constants_of_values_are_not_stored():
    def program(args: list[object]) -> list[object]:
        return args

    program.cache_record = GraphRecord("", {}, {}, GraphReport("g", "inference", 1, 1))  # type: ignore[attr-defined]
    values = FrozenValues((0,), (torch.zeros(8),), (), (1,), (((8,), (1,)),))
    assert FrozenProgram(program, values, (0,)).cache_record.frozen is values
    large = replace(values, constants=(torch.zeros(1 << 19),))
    assert FrozenProgram(program, large, (0,)).cache_record == "its constants are large"
