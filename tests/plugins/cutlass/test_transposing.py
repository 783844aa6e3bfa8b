"""How results leave registers, with threads of the CPU in place of a warp's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

import polyfuse_cutlass
from precompiled import standard_headers
from requirements import needs_gxx

pytestmark = needs_gxx

HEADER = Path(__file__).parents[2] / "cutlass_warp.h"
REDUCTIONS = HEADER.with_name("cutlass_reductions.h")
WORDS = {"ROUNDED": "rounded.cuh", "REDUCED": "epilogue_reductions.cuh"}
DEVICE = Path(polyfuse_cutlass.__file__).parent / "device"
VALUE = r"PF_ACC_IN\((.*?)\)"
TILES = """
static void tiles() {
  Staging staging(0, nullptr);
  for (int tile = 0; tile < TILES; ++tile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Results sum;
    for (int m = 0; m < BLOCKS; ++m)
      for (int i = 0; i < BY / 2; ++i)
        sum[m][i] = number(m * 64 + warp * 16 + lane / 4 + i % 4 / 2 * 8,
                           tile * BY + i / 4 * 8 + lane % 4 * 2 + i % 2);
    Prefetched prefetched;
    prefetched.load(Args(), 0, 0, tile * BY, extent_x(Args()));
    finish_tile(Args(), staging, prefetched, sum, 0, 0, tile * BY, extent_x(Args()));
  }
  staging.done();
}
"""


def without_assembly(name: str) -> str:
    """A fixed part of the kernel, with its accesses to shared memory as calls."""
    text = re.sub(r"#pragma unroll.*", "", (DEVICE / name).read_text())
    store = rf'asm volatile\("st\.shared\.v2[^;]*?;" ::"r"\((.*?)\),\s*{VALUE},\s*{VALUE} : "memory"\);'
    text = re.sub(store, r"store2(\1, \2, \3);", text, flags=re.S)
    for width, load in (("v4.b32", "load4"), ("b32", "load1")):
        found = rf'asm volatile\("ld\.shared\.{re.escape(width)} .*?: "r"\((.*?)\) : "memory"\);'
        text = re.sub(found, rf"{load}(\1, &value[v]);", text, flags=re.S)
    assert "asm" not in text
    return text


def arrives_once(names: tuple[str, ...], numbers: Mapping[str, int], along_rows: bool, folder: Path) -> bool:
    """Whether each result arrives at its index, once, and what groups come to, if they are reduced."""
    constants = [f"constexpr int {key} = {value};" for key, value in numbers.items()]
    constants.append(f"constexpr bool VEC_X = {str(along_rows).lower()};")
    constants += [f"#define {word}" for word, part in WORDS.items() if part in names]
    included = [
        f'#include "{header}"'
        for header in (HEADER, *([REDUCTIONS] if "epilogue_reductions.cuh" in names else ()))
    ]
    source, program = folder / "leaving.cpp", folder / "leaving"
    source.write_text("\n".join([*constants, *included, *map(without_assembly, names), TILES]))
    command = ["g++", "-std=gnu++20", "-O1", "-pthread", "-w"]
    headers = standard_headers(command, "barrier", "cstdlib", "thread", "vector")
    subprocess.run([*command, *headers, str(source), "-o", str(program)], check=True, timeout=6000)
    return subprocess.run([str(program)], timeout=600, check=False).returncode == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("columns", "chunk", "blocks", "count", "along_rows", "buffers", "fetched"),
    (
        (256, 32, 1, 8, False, 2, 8),  # what a result needs besides is asked for a fragment ahead
        (128, 32, 2, 8, False, 1, 80),  # with the fragment
        (256, 64, 1, 8, False, 1, 48),
        (128, 64, 2, 8, False, 2, 8),
        (64, 64, 1, 4, False, 1, 0),  # when it is there
        (64, 64, 1, 8, True, 1, 8),
        (64, 32, 1, 1, False, 2, 8),
        (48, 16, 1, 4, False, 1, 8),
        (16, 16, 1, 8, True, 2, 8),
        (8, 8, 1, 8, False, 2, 8),
    ),
)
def test_each_result_arrives_once(tmp_path, columns, chunk, blocks, count, along_rows, buffers, fetched):
    numbers = {"BY": columns, "CHUNK": chunk, "BLOCKS": blocks, "VEC": count, "BUFFERS": buffers}
    assert arrives_once(("transposed.cuh",), {**numbers, "FETCHED": fetched}, along_rows, tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("columns", "blocks", "buffers"),
    ((256, 1, 2), (128, 2, 3), (176, 1, 1), (192, 1, 2), (72, 1, 4), (64, 1, 2)),
)
def test_rounded_results_arrive_through_the_copy_engine(tmp_path, columns, blocks, buffers):
    """Tile after tile, while it reads fragments late, and with a last one that overlaps the one before."""
    numbers = {"BY": columns, "BLOCKS": blocks, "VEC": 2, "STAGING": buffers * 2048}
    assert arrives_once(("rounded.cuh",), numbers, False, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "chunk", "blocks", "count", "buffers"),
    (
        (256, 32, 1, 8, 2),
        (128, 64, 2, 8, 1),
        (64, 64, 1, 4, 2),
        (96, 32, 2, 4, 1),
        (64, 64, 2, 2, 1),
        (64, 32, 1, 1, 2),
    ),
)
def test_groups_of_sums_are_combined(tmp_path, columns, chunk, blocks, count, buffers):
    numbers = {
        "BY": columns,
        "CHUNK": chunk,
        "BLOCKS": blocks,
        "VEC": count,
        "BUFFERS": buffers,
        "FETCHED": 8,
    }
    assert arrives_once(
        ("transposed.cuh", "epilogue_reductions.cuh", "transposed_reductions.cuh"), numbers, False, tmp_path
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(("columns", "blocks"), ((256, 1), (128, 2), (160, 1), (96, 2), (64, 1)))
def test_groups_of_rounded_results_are_combined(tmp_path, columns, blocks):
    numbers = {"BY": columns, "BLOCKS": blocks, "VEC": 2, "STAGING": 4096}
    assert arrives_once(
        ("epilogue_reductions.cuh", "rounded_reductions.cuh", "rounded.cuh"), numbers, False, tmp_path
    )
