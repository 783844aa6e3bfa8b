"""Packages for fake devices with libraries that run without Python: kernels are functions of the host, which
`fake_driver.c` calls.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from polyfuse import aot
from polyfuse.plugin import API_VERSION, Launchable, Manifest, Source, hookimpl, register
from polyfuse.plugin.host_library import DeviceCode, DeviceKernel
from polyfuse.runtime.devices.registry import device_of
from polyfuse_cpp.backend import CppBackend, _texts
from polyfuse_cuda.host import host_device

F = torch.nn.functional
_KERNELS = "host.json"


class OnFakes(CppBackend):
    """The C++ backend, for devices whose memory is the host's."""

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """One library, without bindings: no process with Python launches its kernels. There is a copy for
        each kernel, as the driver takes a library for one module."""
        if "KERNEL" not in sources[0].text:
            super().build(sources, folder)
            return
        rows = {}
        path = folder / "kernels.cpp"
        path.write_text(self._head(sources) + _texts(sources), encoding="utf-8")
        self._build_library(path, path.with_suffix(".so"), sources[0].name)
        for source in sources:
            shutil.copy(path.with_suffix(".so"), folder / f"{source.symbol}.so")
            call = self.host(source)
            assert call is not None
            rows[source.key] = (source.name, source.symbol, call.arguments)
        (folder / _KERNELS).write_text(json.dumps(rows), encoding="utf-8")

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """No package launches a kernel of it."""
        return dict.fromkeys(json.loads((folder / _KERNELS).read_text()), _refuse)


def _refuse(*operands: Any) -> None:
    raise AssertionError("a package without Python launched a kernel with it")


def host_kernels(folder: Path) -> Mapping[str, DeviceKernel]:
    """The kernels of a built folder as libraries launch them."""
    return {key: _kernel(folder, *row) for key, row in json.loads((folder / _KERNELS).read_text()).items()}


def _kernel(folder: Path, name: str, symbol: str, kinds: Sequence[str]) -> DeviceKernel:
    arguments = tuple((f"n{i}", kind) for i, kind in enumerate(kinds))
    names = tuple(name for name, _ in arguments)
    code = f"{len(names)} {folder / symbol}.so\0".encode()
    codes = tuple(DeviceCode(chip, code, 32, 1024) for chip in (80, 90))
    return DeviceKernel(name, symbol, host_device(), arguments, (*names, "scratch", ""), (1, 1, 1), codes)


class Plugin:
    @staticmethod
    @hookimpl
    def polyfuse_manifest() -> Manifest:
        return Manifest(
            name="on_fakes",
            version="1",
            distribution="tests",
            api=API_VERSION,
            device_types=("cuda",),
            load="fake_device.native_models:OnFakes",
            host_loader="fake_device.native_models:host_kernels",
            priority={"cuda": 1000},
        )


class Block(torch.nn.Module):
    """A block of a transformer, with a product, rows that are reduced, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.up = torch.nn.Linear(24, 40)
        self.down = torch.nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> Any:
        h = x + self.down(F.gelu(self.up(self.norm(x))))
        return h, h.transpose(0, 1), x, 3, h.mean()


class Counting(torch.nn.Module):
    """Writes to a buffer of its own and to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> Any:
        self.calls.add_(1)
        total.add_(x)
        return x * self.calls, torch.cat([x, total], 1)


class Sorting(torch.nn.Module):
    """Rows whose pairs are all compared, of any number, and longer ones."""

    def forward(self, short: torch.Tensor, long: torch.Tensor, wide: torch.Tensor) -> Any:
        return (
            *short.sort(0, descending=True),
            *long.sort(stable=True),
            *long.topk(7, largest=False),
            *wide.argsort(stable=True).sort(),
        )


def sorted_inputs(count: int) -> tuple[torch.Tensor, ...]:
    """Rows with equal numbers, zeros of both signs, infinities and NaN; those of `short` are columns."""
    short, long = torch.randn(count, 3), torch.randn(2, 1100).mul(30).round()
    long[:, 5:11] = torch.tensor([torch.nan, -torch.inf, 0.0, -0.0, torch.inf, torch.nan])
    return short, long.bfloat16(), torch.randint(-3, 3, (2, 40)) << 40


def packages(folder: str, models: Sequence[str]) -> dict[str, Any]:
    """Packages of `models`, with inputs and what the models return for them."""
    register(Plugin)
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)
    x = torch.randn(5, 7, 24)
    block = Block().eval()
    ways = {
        "block": (block, [(x,), (torch.randn(2, 7, 24),), (x.transpose(0, 1).contiguous().transpose(0, 1),)]),
        "sorting": (Sorting(), [sorted_inputs(9), sorted_inputs(12)]),
        "counting": (Counting(), [(torch.randn(2, 3), torch.randn(2, 3))]),
    }
    found: dict[str, Any] = {}
    for name, (model, calls) in ways.items():
        if name not in models:
            continue
        model = model.to("cuda")
        moved = tuple(t.to("cuda") for t in calls[0])
        path = aot.package(
            model,
            moved,
            path=Path(folder) / f"{name}.pf",
            native=True,
            dynamic_shapes={"block": ({0: batch},), "sorting": ({0: batch}, None, None)}.get(name),
            options={"backends": ["on_fakes", "cpp"]},
        )
        torch.save(calls, Path(folder) / f"{name}.inputs")
        results = []
        for given in calls:
            answer = model(*(t.to("cuda") for t in given))
            results.append([t.cpu() if isinstance(t, torch.Tensor) else t for t in answer])
        torch.save(results, Path(folder) / f"{name}.results")
        found[name] = str(path)
    assert not device_of("cuda").is_host
    return found
