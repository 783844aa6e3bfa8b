"""A process that compiles for days: what it maps and holds stays as it is."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

import preforked
from polyfuse.base.settings import child_environment
from polyfuse.runtime.libraries import SharedLibrary
from polyfuse.workers import pool

RECOMPILING = Path(__file__).resolve().parent.parent / "recompiling.py"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="mapped regions are counted as Linux lists them")


def libraries() -> set[str]:
    """Built libraries that are mapped."""
    with open("/proc/self/maps") as lines:
        return {line.split()[-1] for line in lines if "/kernels/" in line}


def compile_again(number: int, **options: object) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * float(number + 1), -1) + number

    x = torch.randn(5, 30)
    torch.compiler.reset()
    compiled = torch.compile(f, backend="polyfuse", options={"strict": True, **options})
    torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.quick(1)
@LINUX
@pytest.mark.parametrize("options", [{}, {"native_host": True}], ids=["", "native host"])
def test_libraries_are_unloaded(monkeypatch, options):
    monkeypatch.setattr(pool, "_REMEMBERED", 2)
    for number in range(2):
        compile_again(number, **options)
    gc.collect()
    before = len(libraries())
    for number in range(2, 6):
        compile_again(number, **options)
        gc.collect()  # what is collected is unloaded when another library is opened
    assert len(libraries()) <= before + 3, libraries()


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000])
def test_recompilations_in_one_process(tmp_path, count):
    """What a process holds in the last fifth of its recompilations is what it held in the second fifth."""
    count = int(os.environ.get("RECOMPILATIONS", count))
    fresh, every = max(count * 6 // 100, 4), max(count // 100, 4)
    environment = child_environment(POLYFUSE_CACHE_DIR=str(tmp_path / "cache"), POLYFUSE_DISABLE="halide")
    process = preforked.start(
        RECOMPILING.read_text(), str(count), str(fresh), str(every), environment=environment
    )
    said, errors = process.communicate(timeout=120 + 4 * count)
    print(said)
    assert process.returncode == 0 and said.endswith("right\n"), f"{said[-2000:]}{errors[-3000:]}"
    lines = [json.loads(line) for line in said.splitlines()[:-1]]
    fifth = max(len(lines) // 5, 1)
    early, late = lines[fifth : 2 * fifth], lines[-fifth:]
    assert largest(late, "regions") <= largest(early, "regions") + 100
    assert largest(late, "libraries") <= largest(early, "libraries") + 40
    assert largest(late, "files") <= largest(early, "files") + 2
    assert largest(late, "threads") <= largest(early, "threads") + 2
    # torch keeps guards and metrics of each recompilation, 25 KiB with any backend
    held = 32 * (late[-1]["recompilations"] - early[0]["recompilations"]) // 1024
    assert largest(late, "mebibytes") <= largest(early, "mebibytes") + 32 + held


def largest(lines: list[dict[str, int]], name: str) -> int:
    return max(line[name] for line in lines)


def test_a_kernel_outlives_everything_else(monkeypatch, tmp_path):
    """What was made of a library keeps it loaded, and whoever drops the last of it does no harm."""
    import ctypes

    from polyfuse_cpp.bindings import bindings_text, load_library
    from polyfuse_cpp.isa import choose_isa
    from polyfuse_cpp.prelude import prelude_for
    from polyfuse_cpp.toolchain import build_library, find_toolchain

    source, library = tmp_path / "k.cpp", tmp_path / "kernels" / "k.so"
    library.parent.mkdir()
    isa = choose_isa("")
    text = 'extern "C" void trial(long long* out, long long n) { *out = n + 1; }\n'
    head = prelude_for((), lanes=isa.lanes, register_bytes=isa.register_bytes)
    source.write_text(head + text + bindings_text({"trial": "pi"}))
    build_library(find_toolchain(), isa, source, library)
    trial = load_library(library)["trial"]
    gc.collect()
    number = ctypes.c_longlong(0)
    for _ in range(3):
        SharedLibrary(library)
    trial(ctypes.addressof(number), 41)
    assert number.value == 42

    def call_and_drop() -> None:
        calls = [load_library(library)["trial"] for _ in range(20)]
        while calls:
            own = ctypes.c_longlong(0)
            calls.pop()(ctypes.addressof(own), 1)
            assert own.value == 2

    threads = [threading.Thread(target=call_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    owner = weakref.ref(trial.__self__)
    del trial
    gc.collect()
    assert owner() is None
    for _ in range(3):
        SharedLibrary(library)
    if sys.platform == "linux":
        assert len([path for path in libraries() if path == str(Path(library))]) <= 1
