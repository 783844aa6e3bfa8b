"""A kernel of the representation: through the build pool and the store to a launch that is recorded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fake_gpu import FakeDriver
from ir_samples import softmax_kernel
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.compiler.reports.naming import emit_named
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.text.print import text
from polyfuse.workers import BuildPool
from polyfuse_triton.backend import TritonBackend
from polyfuse_triton.launch.services import torch_services
from requirements import TRITON, needs_gcc

pytest.importorskip("triton", reason=TRITON)
pytestmark = needs_gcc


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TritonBackend, FakeDriver]:
    driver = FakeDriver(tmp_path)
    driver.reset(2)
    driver.use_device(0)
    services = replace(
        torch_services(),
        driver=str(driver.path),
        stream_function=driver.stream_function,
        current_device=lambda: 0,
    )
    monkeypatch.setattr("polyfuse_triton.launch.services.torch_services", lambda: services)
    settings = Settings.resolve(None, {"triton.target": "sm_90", "cache_dir": str(tmp_path / "cache")})
    made = TritonBackend(settings)
    made.name = "triton"
    return made, driver


def kernel(rows: int = 3, columns: int = 5) -> Kernel:
    """Softmax over rows."""
    plain = text(softmax_kernel()).replace(" on cpu ", " on cuda ")
    changes = {
        "[15]": f"[{rows * columns}]",
        "f32[5]": f"f32[{columns}]",
        "5*i0": f"{columns}*i0",
        "i0{3} ~ 3": f"i0{{{rows}}} ~ {rows}",
        "r0{5} ~ 5": f"r0{{{columns}}} ~ {columns}",
    }
    for old, new in changes.items():
        plain = plain.replace(old, new)
    return parse_kernel(plain)


def test_built_in_a_worker_stored_loaded_and_launched(backend, tmp_path):
    made, driver = backend
    source = emit_named(made, kernel())
    store = KernelStore(tmp_path / "store")
    settings = Settings(build_workers=1)
    with BuildPool(settings) as pool:
        pool.prepare(made, 4)
        launch = pool.submit(made, [source], store).result()[source.key]
    pointers = [arg for arg in kernel().args if arg.kind != "size"]
    operands = [torch.zeros(int(arg.numel), dtype=arg.dtype.torch) for arg in pointers]
    assert all(operand.data_ptr() % 16 == 0 for operand in operands)
    launch(*operands)
    (started,) = driver.launches()
    assert started.stream == 0x5000 and started.values == tuple(x.data_ptr() for x in operands)
    assert "softmax" in started.symbol or "fused" in started.symbol
    assert started.grid[0] >= 1 and started.threads % 32 == 0
    # a second session finds it all
    with BuildPool(settings) as pool:
        again = pool.submit(made, [source], store)
        assert again.done()
        again.result()[source.key](*operands)
    assert len(driver.launches()) == 2


@pytest.mark.slow
def test_candidates_all_compile(backend, tmp_path):
    made, _ = backend
    large = kernel(4096, 1000)
    configs = made.configs(large)
    around = made.neighbours(large, configs[-1])
    assert len(configs) > 3 and set(around) - set(configs)
    # the first is what is used without asking
    assert made.emit(large, configs[0]).key == made.emit(large).key
    sources = [made.emit(large, config) for config in (*configs[:3], around[-1])]
    made.build(sources, tmp_path)
    assert all(made.review(tmp_path, source.key) for source in sources)


def test_neither_generating_nor_loading_imports_triton(backend, tmp_path):
    """A later process finds machine code in the store, and needs no compiler to launch it."""
    made, _ = backend
    one = made.emit(kernel())
    made.build([one], tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from polyfuse.base.settings import Settings; from polyfuse.ir.text.parse import parse_kernel\n"
        "from polyfuse_triton.backend import TritonBackend\n"
        "from polyfuse_triton.build.artifact import read_unit\n"
        "backend = TritonBackend(Settings.resolve(None, {'triton.target': 'sm_90'}))\n"
        "source = backend.emit(parse_kernel(sys.stdin.read()))\n"
        "folder = Path(sys.argv[1])\n"
        "assert source.key in read_unit(folder) and backend.review(folder, source.key)\n"
        "assert 'triton' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        input=text(kernel()),
        text=True,
        check=True,
        timeout=300,
    )
