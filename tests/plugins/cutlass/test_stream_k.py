"""Scratch of stream-K as it is planned, and as the built kernel asks for it."""

from __future__ import annotations

import ctypes
from itertools import product as pairs

import pytest

from cutlass_kernels import product
from polyfuse.base.errors import BackendUnavailableError
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.build import headers
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.problem import problem_of
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.templates.candidates import library_source
from polyfuse_cutlass.templates.collective import Collective
from polyfuse_cutlass.templates.launcher import Linked
from polyfuse_cutlass.templates.stream_k import scratch_bytes
from requirements import CUTLASS, needs_nvcc

STREAM = Collective(128, 128, 2, 1, "stream-K")
TILE, CLUSTER = (128, 128, 64), (2, 1)
EACH = 128 * 128 * 4


def planned(rows: int, columns: int, depth: int, multiprocessors: int = 132, **changes: object) -> int:
    problem = problem_of(product(rows, columns, depth, **changes))
    return scratch_bytes(problem, TILE, CLUSTER, multiprocessors)


def asked(tiles: int) -> int:
    """Sums of so many tiles, and two barriers each, in whole lines of memory."""
    return tiles * EACH + -(-tiles * 8 // 128) * 128


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "tiles"),
    (
        (1024, 256, 4096, 16),
        (512, 512, 4096, 32),  # as many again fill up blocks of tiles that share the cache
        (512, 2560, 4096, 160),  # a wave of 132, and some more
        (2048, 17408, 4096, 2176 - 15 * 132),  # what is left of 16 waves, with one of them
        (1024, 1024, 4096, 0),  # nearly a wave
        (2048, 2048, 4096, 0),  # nearly two
        (512, 512, 512, 0),  # too short a depth
    ),
)
def test_what_is_left_of_a_wave_is_shared_with_a_whole_one(rows, columns, depth, tiles):
    assert planned(rows, columns, depth) == (asked(tiles) if tiles else 0)


def test_waves_are_those_of_the_gpu():
    assert planned(2048, 2048, 4096, multiprocessors=110) == asked(256 - 110)


def test_sizes_that_are_not_known_share_at_most_a_wave_and_a_half():
    assert planned(100, 512, 4096, dynamic=True) == asked(132 * 3 // 2)


def test_other_schedules_need_none():
    kernel = product(512, 512, 4096)
    for schedule, wanted in (("cooperative", 0), ("stream-K", asked(32))):
        config = Collective(128, 128, 2, 1, schedule).config
        assert library_source(kernel, config, Target(), "4.2.0").scratch == wanted


@pytest.mark.slow
@needs_nvcc
def test_a_built_kernel_asks_for_what_was_planned(tmp_path):
    """About half a minute, for compiling."""
    try:
        found = headers.find_headers()
    except BackendUnavailableError as error:
        pytest.skip(f"{CUTLASS}: {error.cause}")
    source = library_source(product(512, 512, 4096, batch=2), STREAM.config, Target(), found.version)
    compiler = find_compiler("nvcc")
    options = {"compiler": "nvcc", "path": compiler.path, "version": compiler.version, "arch": "sm_90a"}
    build_in_worker([source], tmp_path, {**options, "include": found.folder})
    artifact = read_unit(tmp_path)[source.key]
    kernel = Linked(artifact, tmp_path / artifact.file)
    some = set()
    for rows, columns, depth, batch, multiprocessors in pairs(
        (128, 640, 1024, 4096), (256, 1152, 2048), (512, 576, 4096), (1, 2), (132, 114, 78, 100)
    ):
        problem = problem_of(product(rows, columns, depth, batch=batch if batch > 1 else 0))
        wanted = scratch_bytes(problem, TILE, CLUSTER, multiprocessors)
        assert _asks(kernel, (rows, columns, depth, batch), multiprocessors) == wanted
        some.add(wanted)
    assert len(some) > 5


def _asks(kernel: Linked, sizes: tuple[int, int, int, int], multiprocessors: int) -> int:
    """Bytes that the entry point asks for; without a GPU, what would follow fails where it asks for none."""
    rows, columns, depth, _ = sizes
    steps = (1 << 20, depth, 1, rows * depth, 1 << 30, depth, 1, columns * depth)
    arguments, numbers = (ctypes.c_uint64 * 3)(*[1 << 20] * 3), (ctypes.c_int64 * 12)(*sizes, *steps)
    ready, scratch = ctypes.c_void_p(), ctypes.c_longlong(-1)
    status = kernel._prepare(arguments, numbers, multiprocessors, ctypes.byref(ready), ctypes.byref(scratch))
    if not status:
        kernel._forget(ready)  # type: ignore[arg-type]
    return scratch.value
