"""A process that compiles for days: what it maps and holds stays as it is."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polyfuse.runtime.libraries import SharedLibrary
from polyfuse.workers import pool

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="mapped regions are counted as Linux lists them")


def mapped() -> int:
    """Regions of this process's memory."""
    return sum(1 for _ in open("/proc/self/maps"))


def libraries() -> set[str]:
    """Built libraries that are mapped."""
    with open("/proc/self/maps") as lines:
        return {line.split()[-1] for line in lines if "/kernels/" in line}


def resident() -> int:
    """Bytes of memory in use."""
    with open("/proc/self/statm") as line:
        return int(line.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def open_files() -> int:
    """Descriptors of this process, the one that lists them included."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def collected_as_usual() -> Iterator[None]:
    """Garbage is looked for as often as in a program: what compiled functions leave refers to itself."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def compile_again(number: int, **options: object) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * float(number + 1), -1) + number

    x = torch.randn(5, 30)
    torch.compiler.reset()
    compiled = torch.compile(f, backend="polyfuse", options={"strict": True, **options})
    torch.testing.assert_close(compiled(x), f(x))


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
@pytest.mark.usefixtures("collected_as_usual")
def test_ten_thousand_recompilations(monkeypatch, count):
    """Mapped regions, memory, open files and threads after the first thousand are those after the last."""
    count = int(os.environ.get("RECOMPILATIONS", count))
    monkeypatch.setattr(pool, "_REMEMBERED", 16)
    early: tuple[int, int, int, int] | None = None
    for number in range(count):
        compile_again(number)
        if number == count // 10:
            gc.collect()
            early = mapped(), resident(), open_files(), threading.active_count()
        if number % max(count // 20, 1) == 0:
            held = f"{mapped()} regions, {resident() >> 20} MiB, {open_files()} files"
            print(f"after {number}: {held}, {len(libraries())} libraries", flush=True)
    gc.collect()
    assert early is not None
    print(
        f"{count} recompilations: {early[0]} regions, {early[1] >> 20} MiB, {early[2]} files after a tenth,"
    )
    print(f"{mapped()}, {resident() >> 20} MiB, {open_files()} at the end, {len(libraries())} libraries")
    assert mapped() < early[0] + 100 and len(libraries()) < 60
    assert resident() < early[1] + (64 << 20)
    assert open_files() <= early[2] + 2 and threading.active_count() <= early[3]


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
