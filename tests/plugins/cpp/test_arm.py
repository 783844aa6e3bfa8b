"""Kernels and packages for 64-bit Arm, built on this machine and run by an emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import native_runner
from cpp_matmuls import Matmul
from emulators import DOTS, NEON, SVE, Emulator, disassembled, emulate_kernels, machines, needs_arm
from polyfuse import aot
from polyfuse.aot.container import Archive
from polyfuse.base.errors import KernelLoadError, PackageError
from polyfuse.base.settings import Settings
from polyfuse.ir.types import DType
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.matmul.paths import OperandPath

PAIRS = [(DType.i8, DType.i8), (DType.u8, DType.i8), (DType.i8, DType.u8), (DType.u8, DType.u8)]


@machines(DOTS, SVE)
def test_products_of_small_types(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By one instruction for two or four steps of the depth, where the machine has it."""
    emulate_kernels(monkeypatch)
    backend = CppBackend(Settings.resolve(options=emulator.options))
    matmuls = [Matmul(5, 9, 75, dtype=a, other=b, right="nk") for a, b in PAIRS]
    matmuls.append(Matmul(5, 9, 75, dtype=DType.bf16, right="nk"))
    sources = []
    for matmul in matmuls:
        kernel = matmul.kernel()
        along = [c for c in backend.configs(kernel) if c.get("path") == OperandPath.DOTS]
        sources.append(backend.emit(kernel, along[0]))
    assert all("matmul_dots<" in source.text for source in sources)
    backend.build(sources, tmp_path)
    instructions = set(disassembled(tmp_path / "kernels").split())
    assert (instructions >= {"sdot", "udot", "usdot", "bfdot"}) == (emulator is not NEON)
    loaded = backend.load(tmp_path)
    for matmul, source in zip(matmuls, sources, strict=True):
        tensors = matmul.tensors()
        loaded[source.key](*matmul.arguments(tensors))
        wanted = matmul.product(tensors["left"], tensors["right"])[0]
        # one instruction rounds the sums of pairs of bf16 in its own way
        allowed = 1e-5 * 75 if matmul.dtype is DType.bf16 else 0.0
        torch.testing.assert_close(tensors["result"].double(), wanted, atol=allowed, rtol=0.0)


def model() -> torch.nn.Module:
    """Linear layers, a normalisation and a softmax."""
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
    return torch.nn.Sequential(*layers, torch.nn.Softmax(-1)).eval()


@pytest.mark.parametrize("freezing", [False, pytest.param(True, marks=pytest.mark.slow)])
@machines(SVE)
def test_a_package_made_here_runs_there(emulator: Emulator, freezing: bool, tmp_path: Path) -> None:
    needs_arm()
    module, x = model(), torch.randn(5, 16)
    options = {**emulator.options, "freezing": freezing}
    path = aot.package(module, (x,), path=str(tmp_path / "m.pf"), native=True, options=options)
    (found,) = native_runner.call(path, [[x]], emulator=emulator)
    assert not found.error
    torch.testing.assert_close(found.results[0], module(x))
    with pytest.raises(PackageError, match="was made for Linux on aarch64"):
        aot.load(path)
    assert Archive(path).manifest["machine"] == "aarch64"
    if emulator is SVE:
        with pytest.raises(AssertionError, match="compiled for CPUs with sve256, which this one lacks"):
            native_runner.call(path, [[x]], emulator=DOTS)


def test_kernels_for_another_machine_are_not_launched() -> None:
    needs_arm()
    with pytest.raises(KernelLoadError, match="run on aarch64 alone"):
        torch.compile(torch.sin, backend="polyfuse", options=NEON.options)(torch.ones(3))
