"""The device under torch and Polyfuse."""

import copy
import subprocess
import sys

import polyfuse_sim  # noqa: F401
import pytest
import torch
from polyfuse_sim.device import SimGraph
from torch.nn import functional as F

import polyfuse
import polyfuse.aot
from models import Llama, ResNet

SETUPS = {
    "llama": (Llama, lambda n: torch.randint(0, 50, (2, n)), lambda n: (2 * n, 50)),
    "resnet": (ResNet, lambda n: torch.randn(n, 3, 8, 8), lambda n: (n, 10)),
}


def compiled(function, **options):
    polyfuse.reset()
    return torch.compile(function, backend="polyfuse", **options)


def steps(model, batches, call):
    """Losses and parameters of a few steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, foreach=True)
    losses = []
    for x, target in batches:
        loss = F.cross_entropy(call(x).flatten(0, -2), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", SETUPS)
def test_training(name):
    torch.manual_seed(0)
    make, inputs, outputs = SETUPS[name]
    model = make()
    batches = []
    for n in (4, 4, 6):
        count, classes = outputs(n)
        batches.append((inputs(n), torch.randint(0, classes, (count,))))
    mine = copy.deepcopy(model).to("sim")
    wanted = steps(model, batches, model)
    moved = [(x.to("sim"), target.to("sim")) for x, target in batches]
    found = steps(mine, moved, compiled(mine))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert polyfuse.metrics().kernels > 4


def test_sizes_may_vary():
    model = Llama().to("sim")
    call = compiled(model, dynamic=True)
    for n in (5, 9, 12):
        x = torch.randint(0, 50, (2, n), device="sim")
        with torch.no_grad():
            torch.testing.assert_close(call(x).cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)
    assert polyfuse.metrics().graphs == 1


def test_recorded_calls_are_replayed(monkeypatch):
    replayed, replay = [], SimGraph.replay
    monkeypatch.setattr(SimGraph, "replay", lambda graph: replayed.append(replay(graph)))
    model = Llama().to("sim").eval()
    call = compiled(model, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randint(0, 50, (2, 7), device="sim")
            torch.testing.assert_close(call(x).cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)
    assert len(replayed) >= 2


def test_autotuning_uses_the_devices_clock():
    x = torch.randn(512, 256)
    found = polyfuse.explain(lambda x: x.softmax(-1), mode="max-autotune-no-cudagraphs")(x.to("sim"))
    torch.testing.assert_close(found.result.cpu(), x.softmax(-1))
    assert any("unroll" in str(d) for graph in found.graphs for d in graph.decisions), str(found)


def test_packages_run_in_another_process(tmp_path):
    model = Llama().to("sim").eval()
    x = torch.randint(0, 50, (2, 7))
    polyfuse.aot.package(model, (x.to("sim"),), path=tmp_path / "llama.pf")
    torch.save((x, model(x.to("sim")).cpu()), tmp_path / "data.pt")
    text = """
import sys, torch, polyfuse.aot
x, wanted = torch.load(sys.argv[2])
found = polyfuse.aot.load(sys.argv[1])(x.to("sim"))
torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", text, tmp_path / "llama.pf", tmp_path / "data.pt"], check=True)


def test_what_the_device_cannot_do_is_refused():
    x = torch.ones(3, dtype=torch.float64, device="sim")
    assert compiled(lambda x: x * 2)(x).cpu().tolist() == [2.0] * 3
    assert polyfuse.metrics().kernels == 0 and "has no float64" in str(polyfuse.metrics().fallbacks)
    wide = torch.zeros((1 << 26) + 1, dtype=torch.uint8, device="sim")
    assert int(compiled(lambda x: x + 1)(wide)[-1]) == 1
    assert polyfuse.metrics().kernels == 0 and "67108864 elements" in str(polyfuse.metrics().fallbacks)
