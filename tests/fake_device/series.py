"""Series of launches on fake devices: Triton's launcher, and a driver that runs functions of the host."""

from __future__ import annotations

import ctypes
import gc
import json
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch

from fake_device.native_models import OnFakes
from polyfuse.base.errors import KernelLaunchError
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin import API_VERSION, Launchable, Manifest, hookimpl, register
from polyfuse.runtime.module import CompiledModule
from polyfuse_triton.build.artifact import Artifact, Variant
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.launch.native import NativeLauncher, build_library, library_path
from polyfuse_triton.launch.services import torch_services

F = torch.nn.functional
BLAS: Any = None
"""The library of matmuls, from `every_case` on."""
_BEFORE: WeakSet[CompiledModule] = WeakSet()
"""Modules of cases that have run."""
_TYPES = {"ptr": ("ptr", "*fp32"), "i64": ("size", "i64")}


class Launched(OnFakes):
    """Kernels of C++ that Triton's launcher starts."""

    joins_launches = True
    launcher: NativeLauncher
    guard = ""

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        rows = json.loads((folder / "host.json").read_text())
        return {key: self._kernel(key, folder, *row) for key, row in rows.items()}

    def _kernel(self, key: str, folder: Path, name: str, symbol: str, kinds: list[str]) -> Launchable:
        args = tuple(MetaArg(f"n{i}", *_TYPES[kind]) for i, kind in enumerate(kinds))
        sizes = [arg.name for arg in args if arg.kind == "size"]
        (folder / f"{symbol}.code").write_bytes(f"{len(args)} {folder / symbol}.so\0".encode())
        variant = Variant(90, f"{symbol}.code", 0, 1, 32, 0)
        guard = f"{sizes[0]} < 12" if self.guard and sizes else ""
        meta = KernelMeta(args, (), 1, 1, (1, 1, 1), guard=guard)
        return self.launcher.kernel(Artifact(key, name, symbol, meta, (variant,)), folder)


class Plugin:
    @staticmethod
    @hookimpl
    def polyfuse_manifest() -> Manifest:
        return Manifest(
            name="launched",
            version="1",
            distribution="tests",
            api=API_VERSION,
            device_types=("cuda",),
            load="fake_device.series:Launched",
            priority={"cuda": 1000},
        )


def every_case(driver: str, blas: str, cases: list[str]) -> dict[str, Any]:
    """What each case returns, or how it failed."""
    from polyfuse.base.settings import Settings
    from polyfuse.program import series

    series.LEAST = 2
    register(Plugin)
    root = Path(Settings.resolve(None, None).cache_dir)
    library = library_path(root)
    build_library(library)
    global BLAS
    BLAS = ctypes.CDLL(blas)
    opened = ctypes.CDLL(driver)
    services = replace(
        torch_services(), driver=driver, stream_function=None, stream=lambda index: 0, matmuls=blas
    )
    Launched.launcher = NativeLauncher(library, services)
    found: dict[str, Any] = {}
    for name in cases:
        torch.compiler.reset()
        reset_reports()
        gc.collect()
        _BEFORE.update(_modules())
        try:
            found[name] = globals()[name](opened)
        except Exception:
            found[name] = {"failed": traceback.format_exc()[-4000:]}
    return found


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    torch.compiler.reset()
    dynamic = options.pop("dynamic", None)
    backends = ["launched", "cpp"]
    return torch.compile(
        function, backend="polyfuse", dynamic=dynamic, options={"backends": backends, **options}
    )


def _modules() -> list[CompiledModule]:
    """Those of the case that runs: torch holds some longer."""
    return [o for o in gc.get_objects() if type(o) is CompiledModule and o not in _BEFORE]


def _joined() -> list[bool]:
    """Of every series of the programs there are, whether it is one call."""
    spaces = [module.namespace for module in _modules()]
    return ["PyCapsule" in repr(space[row[0]]) for space in spaces for row in space.get("SERIES", ())]


def _check(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def _taken() -> int:
    from fake_device.start import FAKE

    gc.collect()
    return int(FAKE.fake_taken())


class Block(torch.nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 40)
        self.down = torch.nn.Linear(40, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _chain(x: torch.Tensor) -> Any:
    """Reductions, so that there are several kernels, and results of several kinds."""
    y = torch.softmax(x, -1)
    z = torch.softmax(y * 3 + x, 0)
    w = (z - z.mean(-1, keepdim=True)).cumsum(0)
    return w, w.sum(0), z.t()


def results(driver: Any) -> Any:
    torch.manual_seed(0)
    x = torch.randn(7, 24).to("cuda")
    compiled = _compile(_chain)
    for _ in range(3):
        _check(compiled(x), _chain(x))
    series, space, before = _joined(), _modules()[-1].namespace, driver.fake_launches()
    # nothing launches kernel by kernel any more
    with patch.dict(space, dict.fromkeys(space["KERNELS"])):
        _check(compiled(x), _chain(x))
    launches = driver.fake_launches() - before
    strange = x.t().contiguous().t()[::2]
    _check(compiled(strange), _chain(strange))
    return {"series": series, "launches": launches, "taken": _taken()}


def training(driver: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block()).to("cuda")
    compiled = _compile(lambda x: model(x).square().mean())
    for _ in range(4):
        x = torch.randn(6, 24).to("cuda").requires_grad_()
        wanted = torch.autograd.grad(model(x).square().mean(), [x, *model.parameters()])
        _check(torch.autograd.grad(compiled(x), [x, *model.parameters()]), wanted)
    return {"series": _joined(), "taken": _taken()}


def matmuls(driver: Any) -> Any:
    """A library's matmuls of 16 bits, in series with kernels: forward, backward, and views that are saved."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block()).to(torch.bfloat16).to("cuda")
    calls: list[int] = []
    with patch.object(Launched, "joins_matmuls", frozenset({"bfloat16"})):
        compiled = _compile(lambda x: model(x).float().square().mean(), gemm="library")
        for _ in range(4):
            x = torch.randn(3, 8, 24).to(torch.bfloat16).to("cuda").requires_grad_()
            wanted = torch.autograd.grad(model(x).float().square().mean(), [x, *model.parameters()])
            before = BLAS.fake_calls()
            found = torch.autograd.grad(compiled(x), [x, *model.parameters()])
            calls.append(BLAS.fake_calls() - before)
            torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.01)
    rows = [row for m in _modules() for table in m.namespace.get("SERIES", ()) for row in table[-1]]
    count = sum(row[0] == "matmul" for row in rows)
    return {"series": _joined(), "matmuls": count, "calls": calls, "taken": _taken()}


def sizes(driver: Any) -> Any:
    """Any size by one program, empty ones too; one that a kernel refuses is launched kernel by kernel."""
    with patch.object(Launched, "guard", "yes"):
        compiled = _compile(_chain, dynamic=True)
        for rows in (3, 5, 11, 4, 9, 6):
            x = torch.randn(rows, 8).to("cuda")
            _check(compiled(x), _chain(x))
        series = _joined()
        x = torch.randn(40, 8).to("cuda")
        _check(compiled(x), _chain(x))
        _check(compiled(x[:7]), _chain(x[:7]))
    graphs = len(last_reports())
    return {"series": series, "graphs": graphs, "taken": _taken()}


def errors(driver: Any) -> Any:
    """A launch that fails says which kernel it is and where it comes from; afterwards all works."""
    x = torch.randn(7, 24).to("cuda")
    compiled = _compile(_chain)
    for _ in range(2):
        compiled(x)
    said = ""
    driver.fake_fail_after(1)
    try:
        compiled(x)
    except KernelLaunchError as error:
        said = "\n".join((str(error), *error.__notes__))
    _check(compiled(x), _chain(x))
    return {"series": _joined(), "said": said, "taken": _taken()}


def no_memory(driver: Any) -> Any:
    """Whatever allocation fails: torch's own error, no memory stays allocated, and it works again."""
    from fake_device.start import FAKE

    x = torch.randn(7, 24).to("cuda")
    compiled = _compile(_chain)
    for _ in range(2):
        compiled(x)
    expected, ended = _chain(x), 0
    while True:
        FAKE.fake_allocations_left(ctypes.c_int64(ended))
        try:
            compiled(x)
            break
        except torch.OutOfMemoryError:
            assert _taken() == 0
            ended += 1
        finally:
            FAKE.fake_allocations_left(ctypes.c_int64(-1))
        _check(compiled(x), expected)
    return {"series": _joined(), "ended": ended, "taken": _taken()}


def tensors(driver: Any) -> Any:
    """What a series makes of tensors."""
    x = torch.randn(7, 24).to("cuda")
    compiled = _compile(_chain)
    for _ in range(2):
        compiled(x)
    with patch.object(torch, "empty_strided", wraps=torch.empty_strided) as made:
        results = compiled(x)
        count = made.call_count
    return {"series": _joined(), "tensors": count, "results": len(results), "taken": _taken()}


def profiler(driver: Any) -> Any:
    x = torch.randn(7, 24).to("cuda")
    compiled = _compile(_chain)
    for _ in range(2):
        compiled(x)
    with torch.profiler.profile() as profile:
        _check(compiled(x), _chain(x))
    shown = {event.name for event in profile.events()}
    return {
        "series": _joined(),
        "taken": _taken(),
        "kernels": len([name for name in shown if name.startswith("fused_")]),
    }


def threads(driver: Any) -> Any:
    x = [torch.randn(7, 24).to("cuda") for _ in range(4)]
    compiled = _compile(_chain)
    for _ in range(2):
        compiled(x[0])
    wanted = [_chain(one) for one in x]
    wrong: list[str] = []

    def work(k: int) -> None:
        try:
            for _ in range(20):
                _check(compiled(x[k]), wanted[k])
        except Exception:
            wrong.append(traceback.format_exc()[-500:])

    all_of_them = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    return {"series": _joined(), "wrong": wrong, "taken": _taken()}


def off(driver: Any) -> Any:
    x = torch.randn(7, 24).to("cuda")
    compiled = _compile(_chain, launch_series=False)
    for _ in range(2):
        _check(compiled(x), _chain(x))
    return {"series": _joined(), "taken": _taken()}
