"""A driver's library that launches nothing and records everything, for tests of launchers without a GPU."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Two devices, of compute capability 9.0 and 8.6; context 0x1000 + n is that of device n. Code that begins
# with "bad" does not load.
CODE = r"""
#include <string.h>
typedef void* H;
struct record {
  H function, stream;
  unsigned grid[3], block[3], shared;
  long long values[16];
  int attributes[8], count;
};
static struct record records[256];
static int capturing, launches, loads, unloads, params, fail, full, shared_set[64];
static char symbols[64][128];
static int functions;
static __thread H current;

static int version = 13000;
int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int* v) { *v = version; return 0; }
int cuCtxGetCurrent(H* c) { *c = current; return 0; }
int cuCtxSetCurrent(H c) { current = c; return 0; }
int cuCtxPushCurrent_v2(H c) { current = c; return 0; }
int cuCtxPopCurrent_v2(H* c) { return 0; }
int cuCtxGetDevice(int* d) { *d = (int)((long)current - 0x1000); return 0; }
int cuDeviceGet(int* d, int n) { *d = n; return n < 2 ? 0 : 101; }
int cuDeviceGetAttribute(int* v, int a, int d) { *v = a == 75 ? (d ? 8 : 9) : (d ? 6 : 0); return 0; }
int cuDevicePrimaryCtxRetain(H* c, int d) { *c = (H)(long)(0x1000 + d); return 0; }
int cuModuleLoadData(H* m, const void* code) {
  if (!memcmp(code, "bad", 3)) return 200;
  if (full > 0 && full--) return 2;
  *m = (H)(long)++loads;
  return 0;
}
int cuStreamIsCapturing(H s, int* status) { *status = capturing; return 0; }
int cuModuleUnload(H m) { ++unloads; return 0; }
int cuModuleGetFunction(H* f, H m, const char* name) {
  if (functions >= 63) return 500;
  strncpy(symbols[++functions], name, 127);
  *f = (H)(long)functions;
  return 0;
}
int cuFuncSetAttribute(H f, int a, int v) { if (a == 8) shared_set[(long)f] = v; return v > 300000 ? 1 : 0; }
static int keep(H f, const unsigned* grid, const unsigned* block, unsigned shared, H stream, void** p) {
  if (full > 0 && full--) return 2;
  if (fail) return fail;
  struct record* r = &records[launches++ % 256];
  memset(r, 0, sizeof *r);
  r->function = f, r->stream = stream, r->shared = shared, r->count = params;
  memcpy(r->grid, grid, 12), memcpy(r->block, block, 12);
  for (int i = 0; i < params; ++i) memcpy(&r->values[i], p[i], 8);
  return 0;
}
int cuLaunchKernel(H f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned s,
                   H stream, void** p, void** e) {
  unsigned grid[3] = {x, y, z}, block[3] = {bx, by, bz};
  return keep(f, grid, block, s, stream, p);
}
int cuMemsetD8Async(unsigned long long at, unsigned char value, unsigned long count, H stream) {
  memset((void*)at, value, count);
  return 0;
}
struct attribute { int id, padding, value[16]; };
struct config { unsigned grid[3], block[3], shared; H stream; struct attribute* a; unsigned count; };
int cuLaunchKernelEx(const struct config* c, H f, void** p, void** e) {
  int status = keep(f, c->grid, c->block, c->shared, c->stream, p);
  for (unsigned i = 0; !status && i < c->count && i < 4; ++i) {
    records[launches - 1].attributes[2 * i] = c->a[i].id;
    records[launches - 1].attributes[2 * i + 1] = c->a[i].value[0];
  }
  return status;
}
int cuGetErrorName(int s, const char** n) { *n = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int s, const char** n) { *n = s == 200 ? "invalid image" : "fake words"; return 0; }

const struct record* fake_record(int i) { return &records[i]; }
const char* fake_symbol(long f) { return symbols[f]; }
int fake_shared(long f) { return shared_set[f]; }
int fake_launches(void) { return launches; }
int fake_loads(void) { return loads; }
int fake_unloads(void) { return unloads; }
void fake_params(int n) { params = n; }
void fake_fail(int status) { fail = status; }
void fake_capture(int on) { capturing = on; }
void fake_full(int times) { full = times; }
void fake_version(int of) { version = of; }
void fake_reset(void) { launches = fail = full = params = capturing = 0; current = 0; }
int fake_stream(int device, void** stream) { *stream = (H)(long)(0x5000 + device); return 0; }
"""


class _Record(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("values", ctypes.c_longlong * 16),
        ("attributes", ctypes.c_int * 8),
        ("count", ctypes.c_int),
    )


@dataclass(frozen=True)
class Launched:
    """One launch; `values` are the 64 bits that each parameter points to."""

    symbol: str
    stream: int
    grid: tuple[int, ...]
    threads: int
    shared: int
    values: tuple[int, ...]
    attributes: tuple[tuple[int, int], ...]
    allowed: int

    def float32(self, position: int) -> float:
        return float(struct.unpack("<f", struct.pack("<q", self.values[position])[:4])[0])

    def float64(self, position: int) -> float:
        return float(struct.unpack("<d", struct.pack("<q", self.values[position]))[0])


class FakeDriver:
    """The library, built once in a folder; `path` is what a launcher is given."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "libcuda.so.1"
        command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(self.path)]
        subprocess.run(command, input=CODE, text=True, check=True)
        self.library = ctypes.CDLL(str(self.path))
        self.library.fake_record.restype = ctypes.POINTER(_Record)
        self.library.fake_symbol.restype = ctypes.c_char_p

    def reset(self, parameters: int) -> None:
        self.library.fake_reset()
        self.library.fake_params(parameters)

    def use_device(self, index: int | None) -> None:
        """Make the device's context current on this thread, or none."""
        self.library.cuCtxSetCurrent(ctypes.c_void_p(None if index is None else 0x1000 + index))

    def fail(self, status: int) -> None:
        self.library.fake_fail(status)

    def capture(self, on: bool) -> None:
        """Say of all streams that they are being captured, or are not."""
        self.library.fake_capture(int(on))

    def has_no_memory(self, times: int) -> None:
        """Refuse so many loads and launches."""
        self.library.fake_full(times)

    @property
    def loads(self) -> int:
        return int(self.library.fake_loads())

    @property
    def unloads(self) -> int:
        return int(self.library.fake_unloads())

    @property
    def stream_function(self) -> int:
        address = ctypes.cast(self.library.fake_stream, ctypes.c_void_p).value
        assert address is not None
        return address

    def launches(self) -> list[Launched]:
        return [self._launched(i) for i in range(self.library.fake_launches())]

    def _launched(self, index: int) -> Launched:
        record = self.library.fake_record(index).contents
        function = ctypes.c_long(record.function)
        numbers = list(record.attributes)
        return Launched(
            symbol=self.library.fake_symbol(function).decode(),
            stream=record.stream or 0,
            grid=tuple(record.grid),
            threads=record.block[0],
            shared=record.shared,
            values=tuple(record.values)[: record.count],
            attributes=tuple((a, b) for a, b in zip(numbers[::2], numbers[1::2]) if a),
            allowed=self.library.fake_shared(function),
        )
