"""Ahead-of-time packages on a GPU: made with every backend, loaded by a process that can compile nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from packaged_models import BATCH, Halving, in_a_process
from polyfuse.aot import load, package
from polyfuse.base.errors import PackageError
from requirements import TRITON, needs_nvcc

pytestmark = pytest.mark.gpu

SCRIPT = """
import json, sys, torch
from polyfuse.aot import load
found = load(sys.argv[1])
x = torch.load(sys.argv[2], weights_only=True)
torch.save([found(x).cpu() for _ in range(3)], sys.argv[3])
print(json.dumps(list(sys.modules)))
"""

HEAVY = ("sympy", "torch._dynamo", "triton", "halide", "polyfuse.compiler", "polyfuse.lowering")
GENERATORS = ("polyfuse_triton.codegen", "polyfuse_cutlass.codegen.hopper", "polyfuse_halide.codegen.kernel")


class Layer(torch.nn.Module):
    """A product with something after it, a reduction, and a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(256, 512)
        self.norm = torch.nn.LayerNorm(512)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.nn.functional.gelu(self.norm(self.linear(x))) + self.calls


def layer(dtype: torch.dtype) -> Layer:
    return Layer().to("cuda", dtype).eval()


def made(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    x = torch.randn(64, 256, device="cuda", dtype=dtype)
    program = export(layer(dtype), (x,), dynamic_shapes={"x": {0: Dim("rows", min=2, max=4096)}})
    return package(program, path=path, **options)


def check(path: Path, folder: Path, dtype: torch.dtype, tolerance: float) -> set[str]:
    """Run a package in a process without programs and an empty cache; return what was imported there."""
    x = torch.randn(96, 256, device="cuda", dtype=dtype)
    torch.save(x, folder / "in.pt")
    files = (str(path), str(folder / "in.pt"), str(folder / "out.pt"))
    modules = in_a_process(SCRIPT, *files, POLYFUSE_CACHE_DIR=str(folder / "cache"))
    model = layer(dtype)
    for result in torch.load(folder / "out.pt", weights_only=True):
        torch.testing.assert_close(result, model(x).cpu(), rtol=tolerance, atol=tolerance)
    return set(modules)


def test_kernels_in_triton(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason=TRITON)
    path = made(tmp_path / "layer.pf")
    assert load(path).description.devices == ("cuda",)
    modules = check(path, tmp_path, torch.float32, 2e-3)
    assert sorted(modules & {*HEAVY, *GENERATORS}) == []
    with zipfile.ZipFile(path) as archive:
        assert any(name.endswith("/launcher.so") for name in archive.namelist())


@needs_nvcc
@pytest.mark.usefixtures("hopper")
def test_matmuls_by_another_backend(tmp_path: Path) -> None:
    options = {"gemm": "generated", "backends": ["cutlass", "triton"]}
    path = made(tmp_path / "layer.pf", torch.bfloat16, options=options)
    names = {unit.backend for unit in load(path).description.units.values()}
    assert "cutlass" in names, names
    modules = check(path, tmp_path, torch.bfloat16, 5e-2)
    assert sorted(modules & {*HEAVY, *GENERATORS}) == []


def test_recorded_work_and_replaced_weights(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason=TRITON)
    found = load(made(tmp_path / "layer.pf", mode="reduce-overhead"))
    model = layer(torch.float32)
    x = torch.randn(64, 256, device="cuda")
    for _ in range(4):
        torch.testing.assert_close(found(x), model(x), rtol=2e-3, atol=2e-3)
    with torch.no_grad():
        model.linear.weight.mul_(-0.5)
    found.load_constants({"linear.weight": model.linear.weight.detach().cpu()})
    for _ in range(4):
        torch.testing.assert_close(found(x), model(x), rtol=2e-3, atol=2e-3)
    assert found.constants["calls"] == model.calls == 8


def test_arguments_of_other_layouts_and_devices(tmp_path: Path) -> None:
    found = load(made(tmp_path / "layer.pf"))
    x = torch.randn(256, 33, device="cuda").t()
    torch.testing.assert_close(found(x), layer(torch.float32)(x), rtol=2e-3, atol=2e-3)
    with pytest.raises(PackageError, match=r"x is .* on cpu where .* on cuda was"):
        found(x.cpu())


def test_functions_below_functions(tmp_path: Path) -> None:
    """A loop in a branch of a condition, in this process and in one without a compiler."""
    pytest.importorskip("triton", reason=TRITON)
    torch.manual_seed(0)
    model = Halving().cuda().eval()
    program = export(model, (torch.randn(3, 4, device="cuda"),), dynamic_shapes=({0: Dim("batch", **BATCH)},))
    path = package(program, path=tmp_path / "halving.pf")
    found = load(path)
    for x in (torch.ones(5, 4), -torch.ones(2, 4), torch.full((3, 4), 1e3), torch.ones(4, 7).t()):
        torch.testing.assert_close(found(x.cuda()), model.wanted(x.cuda()))
    for value in (1.0, -1.0):
        x = torch.full((3, 4), value, device="cuda")
        torch.save(x, tmp_path / "in.pt")
        modules = in_a_process(SCRIPT, str(path), *(str(tmp_path / name) for name in ("in.pt", "out.pt")))
        for result in torch.load(tmp_path / "out.pt", weights_only=True):
            torch.testing.assert_close(result, model.wanted(x).cpu())
        assert sorted(set(modules) & {*HEAVY, *GENERATORS}) == []
