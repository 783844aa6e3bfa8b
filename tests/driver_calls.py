"""Writes what every launcher asks of the CUDA driver: run as a program, with a driver that notes each call.

`build_driver` makes that driver; `python driver_calls.py FOLDER SCENARIO ...` runs some of `SCENARIOS`, each
in a fork of its own, and writes the calls, one a line, with all arguments that do not depend on where memory
happens to be, into a file of the folder. It needs no GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

__all__ = ["SCENARIOS", "build_driver"]

# Device n has the context 0x1000 + n. Code that begins with "bad" does not load.
CODE = r"""
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
typedef void* H;
typedef unsigned long long U64;
static char text[1 << 16], failing[64];
static int used, status_of_failing, parameters, number_of_float32 = -1, words = 1, loads, maps;
static int version = 13000;
static __thread H current;
static void note(const char* format, ...) {
  va_list list;
  va_start(list, format);
  used += vsnprintf(text + used, sizeof text - used, format, list);
  va_end(list);
}
static int done(const char* name) {
  note("\n");
  return strcmp(name, failing) ? 0 : status_of_failing;
}
#define DONE return done(__func__)
#define NOTE(format, ...) note("%s " format, __func__, ##__VA_ARGS__)
int cuInit(unsigned flags) { NOTE("%u", flags); DONE; }
int cuDriverGetVersion(int* v) { NOTE(""); *v = version; DONE; }
int cuCtxGetCurrent(H* c) { NOTE("-> %p", current); *c = current; DONE; }
int cuCtxSetCurrent(H c) { NOTE("%p", c); current = c; DONE; }
int cuCtxPushCurrent_v2(H c) { NOTE("%p", c); current = c; DONE; }
int cuCtxPopCurrent_v2(H* c) { NOTE(""); DONE; }
int cuCtxGetDevice(int* d) { NOTE(""); *d = (int)((long)current - 0x1000); DONE; }
int cuDeviceGet(int* d, int n) { NOTE("%d", n); *d = n; DONE; }
int cuDeviceGetAttribute(int* v, int a, int d) {
  NOTE("%d %d", a, d);
  *v = a == 75 ? 9 : a == 76 ? 0 : 233472;
  DONE;
}
int cuDevicePrimaryCtxRetain(H* c, int d) { NOTE("%d", d); *c = (H)(long)(0x1000 + d); DONE; }
int cuModuleLoadData(H* m, const void* code) {
  NOTE("%.5s", (const char*)code);
  *m = (H)(long)(0x2000 + ++loads);
  if (!memcmp(code, "bad", 3)) { note("\n"); return 200; }
  DONE;
}
int cuModuleUnload(H m) { NOTE("%p", m); DONE; }
int cuModuleGetFunction(H* f, H m, const char* name) {
  NOTE("%p %.6s", m, name);
  *f = (H)((long)m + 0x1000);
  DONE;
}
int cuFuncSetAttribute(H f, int a, int v) { NOTE("%p %d %d", f, a, v); DONE; }
static void note_parameters(void** p, void** extra) {
  note(" (");
  for (int i = 0; i < parameters; ++i)
    note(i ? ", %llx" : "%llx", i == number_of_float32 ? *(unsigned*)p[i] : *(U64*)p[i]);
  // the last one may be a structure
  for (int i = 1; i < words; ++i) note(", %llx", ((U64*)p[parameters - 1])[i]);
  note(") %p", extra);
}
int cuLaunchKernel(H f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, H stream, void** p, void** extra) {
  NOTE("%p %u,%u,%u %u,%u,%u %u %p", f, x, y, z, bx, by, bz, shared, stream);
  if (!current) { note(" no context\n"); return 201; }
  note_parameters(p, extra);
  DONE;
}
struct attribute { int id, padding, value[16]; };
struct config { unsigned grid[3], block[3], shared; H stream; struct attribute* list; unsigned count; };
static void note_config(const struct config* c) {
  note("%u,%u,%u %u,%u,%u %u %p [", c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
       c->shared, c->stream);
  for (unsigned i = 0; i < c->count; ++i)
    note(i ? ", %d: %d,%d,%d" : "%d: %d,%d,%d", c->list[i].id, c->list[i].value[0], c->list[i].value[1],
         c->list[i].value[2]);
  note("]");
}
int cuLaunchKernelEx(const struct config* c, H f, void** p, void** extra) {
  NOTE("%p ", f);
  note_config(c);
  if (!current) { note(" no context\n"); return 201; }
  note_parameters(p, extra);
  DONE;
}
int cuOccupancyMaxActiveClusters(int* n, H f, const struct config* c) {
  NOTE("%p ", f);
  note_config(c);
  *n = 30;
  DONE;
}
int cuMemsetD8Async(U64 at, unsigned char value, size_t count, H stream) {
  NOTE("%s %d %zu %p", at % 16 ? "unaligned" : "aligned", value, count, stream);
  DONE;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const U64* extents,
                           const U64* strides, const unsigned* box, const unsigned* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  NOTE("%s %d %u %p", (U64)map % 64 ? "unaligned" : "aligned", type, rank, address);
  for (unsigned i = 0; i < rank; ++i) note(" %llu/%u/%u", extents[i], box[i], steps[i]);
  for (unsigned i = 0; i + 1 < rank; ++i) note(" +%llu", strides[i]);
  note(" %d %d %d %d", interleave, swizzle, promotion, fill);
  *(U64*)map = 0xaaaa0000 + ++maps;
  DONE;
}
int cuGetErrorName(int s, const char** n) { NOTE("%d", s); *n = "CUDA_ERROR_FAKE"; DONE; }
int cuGetErrorString(int s, const char** n) { NOTE("%d", s); *n = "fake words"; DONE; }

const char* fake_text(void) { return text; }
void fake_note(const char* line) { note("%s\n", line); }
void fake_params(int n) { parameters = n; }
void fake_float32(int i) { number_of_float32 = i; }
void fake_words(int n) { words = n; }
void fake_version(int of) { version = of; }
void fake_context(long c) { current = (H)c; }
void fake_fail(const char* name, int status) { strncpy(failing, name, 63), status_of_failing = status; }
int fake_stream(int device, H* stream) { NOTE("%d", device); *stream = (H)(long)(0x7000 + device); DONE; }
"""


def build_driver(folder: Path) -> None:
    """Make `libcuda.so.1` in a folder, which the caller puts on the linker's path."""
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], input=CODE, text=True, check=True)


class Notes:
    """The driver's other side."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.fake_text.restype = ctypes.c_char_p

    def say(self, line: str) -> None:
        self.library.fake_note(f"# {line}".encode())

    @contextmanager
    def failing(self, name: str, status: int) -> Iterator[None]:
        self.library.fake_fail(name.encode(), status)
        yield
        self.library.fake_fail(b"", 0)

    def attempt(self, what: str, call: Callable[[], object]) -> None:
        """Note what is done, and the error that comes of it."""
        self.say(what)
        try:
            call()
        except Exception as error:
            cause, fix = str(getattr(error, "cause", error)), getattr(error, "fix", "")
            said = f"{type(error).__name__}: {cause} | {fix}"
            self.say(re.sub(r"\b_kernel_\w+", "_kernel", re.sub(r"\bk_\w{40,}", "k_KEY", said)))

    @property
    def text(self) -> str:
        return str(self.library.fake_text().decode())


class Aligned:
    """Memory whose address is no multiple of any larger power of two than the one that was asked for."""

    def __init__(self, size: int) -> None:
        self.memory = ctypes.create_string_buffer(size + 4096)

    def data_ptr(self) -> int:
        return -(-ctypes.addressof(self.memory) // 2048) * 2048 + 8


def triton(notes: Notes, plain: bool, folder: Path) -> None:
    """Kernels of every kind of launch."""
    from polyfuse_triton.build.artifact import Artifact, Variant
    from polyfuse_triton.build.meta import KernelMeta, MetaArg
    from polyfuse_triton.launch.native import NativeLauncher, build_library
    from polyfuse_triton.launch.plain import PlainLauncher
    from polyfuse_triton.launch.services import torch_services

    services = replace(
        torch_services(),
        stream_function=None,
        stream=lambda index: 0x7000 + index,
        current_device=lambda: 1,
        allocate=Aligned,
        profiler=None,
    )
    path = folder / "launcher.so"
    if not plain:
        build_library(path)

    def launcher() -> Any:
        return PlainLauncher(services) if plain else NativeLauncher(path, services)

    args = (
        MetaArg("in0", "ptr", "*fp32", True),
        MetaArg("out0", "ptr", "*fp32"),
        MetaArg("ks0", "size", "i32"),
        MetaArg("ks1", "size", "i64"),
        MetaArg("h0", "size", "fp32"),
        MetaArg("h1", "size", "fp64"),
    )
    meta = KernelMeta(args, (), num_warps=4, num_stages=1, grid=("ks0 + 1", "ks1", 2))
    given = (0x10000, 0x20008, 3, 5, 1.5, -2.25)

    def kernel(name: str, made: Any, meta: KernelMeta = meta, code: bytes = b"code", **changes: Any) -> Any:
        (folder / "x.cubin").write_bytes(code + b"\0")
        variant = replace(Variant(90, "x.cubin", 1024, 4, 32, 0), **changes)
        return made.kernel(Artifact("key", name, f"k_{name}", meta, (variant,)), folder)

    one = launcher()
    notes.library.fake_params(8)
    notes.library.fake_float32(4)
    simple = kernel("simple", one)
    notes.attempt("a thread without a context", lambda: simple(*given))
    notes.attempt("again", lambda: simple(*given))
    notes.attempt("no programs", lambda: simple(*given[:3], 0, *given[4:]))
    notes.attempt("much shared memory", lambda: kernel("shared", one, shared_bytes=100_000)(*given))
    big = replace(meta, cluster=13)
    notes.attempt("a cluster", lambda: kernel("cluster", one, big)(*given))
    grid = replace(meta, num_ctas=4, cooperative=True)
    notes.attempt("cooperative", lambda: kernel("cooper", one, grid, starts_early=True)(*given))
    notes.attempt("early", lambda: kernel("early", one, starts_early=True)(*given))
    notes.library.fake_params(5)
    zeroed = replace(meta, zeroed="2 + 4 * ks0")
    notes.attempt("zeros", lambda: kernel("zeros", one, zeroed)(*given))
    notes.attempt("scratch", lambda: kernel("scratch", one, scratch_bytes=256, scratch_align=128)(*given))
    notes.attempt("damaged", lambda: kernel("damaged", one, code=b"bad")(*given))
    for name in ("cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuMemsetD8Async"):
        with notes.failing(name, 700):
            failing = kernel(name[2:6], one, zeroed, shared_bytes=50_000)
            notes.attempt(f"{name} fails", lambda: failing(*given))  # noqa: B023
    notes.library.fake_context(0)
    with notes.failing("cuDevicePrimaryCtxRetain", 2):
        notes.attempt("no context", lambda: simple(*given))
    notes.library.fake_version(12020)
    notes.attempt("an old driver", lambda: kernel("old", launcher(), starts_early=True)(*given))
    simple = None


def cutlass(notes: Notes, folder: Path) -> None:
    """A GEMM: tensor maps, a grid that stays on the device, clusters."""
    import torch

    from cutlass_kernels import RESIDUAL, product
    from polyfuse_cutlass.build.artifact import Artifact, write_unit
    from polyfuse_cutlass.build.meta import KernelMeta
    from polyfuse_cutlass.launch.launcher import load_unit
    from polyfuse_cutlass.space import emit
    from polyfuse_cutlass.target import Target
    from polyfuse_cutlass.tiling import Tiling

    def loaded(kernel: Any, tiling: Any, code: bytes = b"code") -> Any:
        source = emit(kernel, tiling.config, Target())
        meta = KernelMeta.parse(source.meta)
        (folder / "x.cubin").write_bytes(code)
        write_unit(folder, [Artifact(source.key, "k", "k_gemm", "x.cubin", source.meta)], "none")
        notes.library.fake_params(len(meta.maps) + 1)
        notes.library.fake_words(len(meta.args))
        return load_unit(folder)[source.key]

    def set_device(index: int) -> None:
        notes.say(f"torch enters device {index}")
        notes.library.fake_context(0x1000 + index)

    torch.cuda.set_device = set_device  # type: ignore[assignment]
    torch.cuda.current_stream = lambda: SimpleNamespace(query=lambda: None)  # type: ignore[assignment, return-value]
    small, addresses = Tiling(1, 64, stages=4), (0x10000, 0x20000, 0x30000)
    notes.say("a thread without a context")
    launch = loaded(product(64, 64, 64), small)
    notes.attempt("a launch", lambda: launch(*addresses))
    notes.attempt("again", lambda: launch(*addresses))
    notes.library.fake_context(0)
    notes.attempt("again, in a thread without a context", lambda: launch(*addresses))
    rows = loaded(product(300, 264, 64, epilogue=RESIDUAL, dynamic=True), Tiling(1, 128))
    notes.attempt("dynamic sizes", lambda: rows(*addresses, 0x40000, 0x50000, 300))
    notes.attempt("no rows", lambda: rows(*addresses, 0x40000, 0x50000, 0))
    pairs = loaded(product(8192, 8192, 64), Tiling(1, 256, across=2))
    notes.attempt("clusters", lambda: pairs(*addresses))
    split = loaded(product(8192, 8192, 512), Tiling(1, 64, split=2, stages=6))
    notes.attempt("split", lambda: split(*addresses))
    notes.attempt("damaged", lambda: loaded(product(64, 64, 64), small, b"bad"))
    for name in ("cuCtxGetCurrent", "cuModuleGetFunction", "cuFuncSetAttribute"):
        with notes.failing(name, 700):
            notes.attempt(f"{name} fails", lambda: loaded(product(64, 64, 64), small))
    with notes.failing("cuTensorMapEncodeTiled", 1):
        notes.attempt("a map fails", lambda: launch(0x10000, 0x20000, 0x40000))
    with notes.failing("cuLaunchKernelEx", 700):
        notes.attempt("a launch fails", lambda: launch(*addresses))
    with notes.failing("cuOccupancyMaxActiveClusters", 1):
        pairs = loaded(product(8192, 8192, 64), Tiling(1, 256, across=2))
        notes.attempt("nobody knows how many clusters run at once", lambda: pairs(*addresses))
    notes.library.fake_version(12020)
    late = loaded(product(64, 64, 64), small)
    notes.attempt("an old driver", lambda: late(*addresses))


def halide(notes: Notes, native_stream: bool, folder: Path) -> None:
    """Kernels of Halide's runtime, which is the plugin's own."""
    import torch

    from polyfuse.base.settings import Settings
    from polyfuse.ir.expr import apply, load
    from polyfuse.ir.kernel import KernelArg
    from polyfuse.ir.types import DType
    from polyfuse.symbolic import axis, symbol
    from polyfuse.testing.cases.builder import Builder, Store
    from polyfuse_halide.backend import HalideBackend
    from polyfuse_halide.launch.device_launcher import device_launcher

    if native_stream:
        address = ctypes.cast(notes.library.fake_stream, ctypes.c_void_p).value
        mock.patch("polyfuse.runtime.launching.current_stream_address", lambda kind: address).start()
    memory = Aligned(256)
    torch.zeros = lambda *size, **options: memory  # type: ignore[assignment]

    def doubled(size: Any) -> Any:
        i = axis("i0", size)
        args = [KernelArg("in0", "in", DType.f32, size), KernelArg("out0", "out", DType.f32, size)]
        if not isinstance(size, int):
            args.append(KernelArg("s0", "size", DType.i64))
        builder = Builder("doubled", (i,), (), tuple(args))
        value = load("in0", i, DType.f32)
        builder.once(Store("out0", i, apply("add", value, value)))
        return replace(builder.kernel((1000,)), device="cuda")

    backend = HalideBackend(Settings.resolve(options={"halide.gpu": "80"}))

    def launcher(size: Any) -> Any:
        source = backend.emit(doubled(size))
        backend.build([source], folder)
        return device_launcher(source.symbol, (folder / f"{source.key}.o").read_bytes(), source.meta, None)

    notes.library.fake_params(2)
    fixed = launcher(1000)
    notes.attempt("a thread without a context", lambda: fixed(0x10000, 0x20000))
    notes.attempt("again", lambda: fixed(0x10000, 0x20000))
    sized = launcher(symbol("s0", 0, None))
    notes.library.fake_params(0)
    for size in (5000, 0, 256):
        notes.attempt(f"{size} elements", lambda: sized(0x10000, 0x20000, size))  # noqa: B023
    notes.library.fake_params(2)
    notes.library.fake_context(0)
    notes.attempt("ready, in a thread without a context", lambda: fixed(0x10000, 0x20000))
    for name in ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"):
        with notes.failing(name, 700):
            failing = launcher(1000)
            notes.attempt(f"{name} fails", lambda: failing(0x10000, 0x20000))  # noqa: B023
    notes.library.fake_context(0)
    with notes.failing("cuDevicePrimaryCtxRetain", 2):
        failing = launcher(1000)
        notes.attempt("no context", lambda: failing(0x10000, 0x20000))


SCENARIOS: dict[str, Callable[[Notes, Path], None]] = {
    "triton_native": lambda notes, folder: triton(notes, False, folder),
    "triton_plain": lambda notes, folder: triton(notes, True, folder),
    "cutlass": cutlass,
    "halide": lambda notes, folder: halide(notes, False, folder),
    "halide_native_stream": lambda notes, folder: halide(notes, True, folder),
}


def run(name: str, target: Path) -> None:
    """Run a scenario, and write its calls."""
    import torch

    for dotted, value in (
        ("torch.cuda.device_count", lambda: 1),
        ("torch.cuda.current_device", lambda: 0),
        ("torch.cuda.get_device_properties", lambda i: SimpleNamespace(multi_processor_count=132)),
        ("polyfuse.runtime.launching.current_stream", lambda kind: lambda index: 0x7000 + index),
        ("polyfuse.runtime.launching.current_stream_address", lambda kind: 0),
    ):
        mock.patch(dotted, value).start()
    assert torch.cuda.device_count() == 1
    notes = Notes()
    with tempfile.TemporaryDirectory() as folder:
        SCENARIOS[name](notes, Path(folder))
    target.write_text(notes.text, encoding="utf-8")


def main(folder: Path, names: Sequence[str]) -> None:
    """Fork for each scenario: importing torch takes longer than all of them."""
    import torch  # noqa: F401

    import polyfuse.runtime.launching  # noqa: F401

    for name in names:
        child = os.fork()
        if not child:
            status = 1
            try:
                run(name, folder / name)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
