"""Kernels under the thread sanitizer: no data race. OpenMP's part is played by POSIX threads that are started
and joined (`threads_of_our_own.h`), since the sanitizer knows nothing of how g++'s own runtime waits.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polyfuse.base.settings import child_environment

HEADER = Path(__file__).resolve().parent.parent / "threads_of_our_own.h"
COMPILER = ("g++", "-fsanitize=thread", "-include", str(HEADER))


def runtime() -> str:
    """The sanitizer's library, which must be loaded first; empty where there is none."""
    command = ["gcc", "-print-file-name=libtsan.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if Path(done.stdout.strip()).is_absolute() else ""


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None or not runtime(),
    reason="gcc has no thread sanitizer here",
)

PROGRAM = """
#include <cstdlib>
int main(int, char** given) {
  const bool overlapping = atoi(given[1]);
  static long out[64], total;
#pragma omp parallel num_threads(4)
  {
    const int at = omp_get_thread_num(), of = omp_get_num_threads();
    for (int i = 64 * at / of; i < 64 * (at + 1) / of + (overlapping && at == 0); ++i) out[i] = i;
#pragma omp barrier
    if (at == 1)
      for (int i = 0; i < 64; ++i) total += out[i];
  }
  return total == 2016 ? 0 : 1;
}
"""


def test_a_race_is_found_and_a_barrier_is_understood(tmp_path):
    (tmp_path / "p.cpp").write_text(PROGRAM)
    made = [*COMPILER, "-fopenmp", "-O1", "-g0", str(tmp_path / "p.cpp"), "-o", str(tmp_path / "p")]
    subprocess.run(made, check=True)
    for overlapping, status in (("0", 0), ("1", 66)):
        done = subprocess.run([tmp_path / "p", overlapping], capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stderr
        assert ("data race" in done.stderr) == bool(status)


KIT = """
import sys
import torch
from polyfuse.testing.conformance import run
from polyfuse_cpp import prelude

torch.set_num_threads(1)  # torch's own threads, which the sanitizer does not understand
real = prelude.header_text
def header_text(name):
    # small kernels are shared among threads too
    text = real(name)
    changed = text.replace("const i64 grain = 200000;", "const i64 grain = 1;")
    assert (changed != text) == (name == "kernel")
    return changed
prelude.header_text = header_text
shared = set()
def note(event, given):
    if event == "ctypes.dlopen" and given[0] and str(given[0]).endswith("kernels.so"):
        with open(given[0], "rb") as file:
            if b"_omp_fn" in file.read():
                shared.add(given[0])
sys.addaudithook(note)
matrix = run("cpp", quick=True)
for cell in matrix.failures():
    print(cell.label, cell.reason)
print("ended", matrix.ok, len(shared))
"""


@pytest.mark.slow
def test_no_kernel_of_the_kit_has_a_race(tmp_path):
    environment = child_environment(
        LD_PRELOAD=runtime(),
        TSAN_OPTIONS=f"log_path={tmp_path}/report exitcode=0",
        CXX=" ".join(COMPILER),
        POLYFUSE_CACHE_DIR=str(tmp_path / "cache"),
        POLYFUSE_DISABLE="halide",
    )
    done = subprocess.run(
        [sys.executable, "-c", KIT], capture_output=True, text=True, env=environment, timeout=3600
    )
    assert "ended True" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout.splitlines()[-1], "libraries with parallel loops")
    assert int(done.stdout.split()[-1]) > 10
    reports = [path.read_text() for path in tmp_path.glob("report*")]
    assert not reports, reports[0][:4000]
