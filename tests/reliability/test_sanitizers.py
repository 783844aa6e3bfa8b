"""Kernels and host programs under the sanitizers of addresses and undefined behaviour: no finding.
`make sanitize` is the long form.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polyfuse.base.settings import child_environment

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"


def runtime() -> str:
    """The sanitizers' libraries, which must be loaded first; empty where there are none."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False
        )
        found.append(done.stdout.strip())
    return " ".join(found) if all(Path(path).is_absolute() for path in found) else ""


SANITIZED = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None or not runtime(),
    reason="gcc has no sanitizers here",
)


def sanitized(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = child_environment(
        LD_PRELOAD=runtime(),
        ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0",
        CXX=f"g++ {FLAGS}",
        POLYFUSE_CACHE_DIR=str(folder / "cache"),
        POLYFUSE_DISABLE="halide",
    )
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


CLEAN = """
import torch
torch.set_num_threads(1)
def f(x, w):
    y = torch.softmax(x @ w, -1)
    return (y.cumsum(0) * x.sum(1, keepdim=True)).tanh()
for host in (False, True):
    torch.compiler.reset()
    x, w = torch.randn(7, 13, requires_grad=True), torch.randn(13, 13)
    options = {"strict": True, "native_host": host, "graph_cache": False}
    run = torch.compile(f, backend="polyfuse", options=options)
    found, wanted = run(x, w), f(x, w)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
print("clean")
"""

FAULTY = """
import ctypes
from pathlib import Path
from polyfuse_cpp.toolchain import build_library, find_toolchain
from polyfuse_cpp.isa import choose_isa
from polyfuse_cpp.bindings import bindings_text, load_library
from polyfuse_cpp.prelude import prelude_for
import torch
folder = Path({folder!r})
isa = choose_isa("")
text = 'extern "C" void trial(float* out, long long n) {{ out[n] = 1; }}'
head = prelude_for((), lanes=isa.lanes, register_bytes=isa.register_bytes)
(folder / "k.cpp").write_text(head + text + bindings_text({{"trial": "pi"}}))
import os
build_library(find_toolchain(os.environ["CXX"]), isa, folder / "k.cpp", folder / "k.so")
x = torch.zeros(16)
load_library(folder / "k.so")["trial"](x.data_ptr(), 16)
print("unseen")
"""


@pytest.mark.slow
@SANITIZED
def test_nothing_is_found_in_what_is_generated(tmp_path):
    done = sanitized(CLEAN, tmp_path)
    assert done.returncode == 0 and "clean" in done.stdout, done.stderr[-4000:]
    assert "runtime error" not in done.stderr and "AddressSanitizer" not in done.stderr, done.stderr[-4000:]


@pytest.mark.slow  # what `make sanitize` rests on; it looks at the sanitizers, and not at the product
@SANITIZED
def test_a_store_beside_a_buffer_is_found(tmp_path):
    """The sanitizers do look."""
    done = sanitized(FAULTY.format(folder=str(tmp_path)), tmp_path)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr, done.stdout + done.stderr[-4000:]
