"""How warps turn their results round, with threads of the processor in place of a warp's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import polyfuse_cutlass
from requirements import needs_gxx

pytestmark = needs_gxx

HEADER = Path(__file__).parents[2] / "cutlass_warp.h"
KERNEL = Path(polyfuse_cutlass.__file__).parent / "device" / "gemm.cuh"
VALUE = r"PF_ACC_IN\((.*?)\)"


def turning() -> str:
    """That part of the kernel, with its accesses to shared memory as calls."""
    text = KERNEL.read_text()
    start, end = text.index("// Where a result is while"), text.index("// The blocks of a cluster have each")
    text = re.sub(r"#pragma unroll.*", "", text[start:end])
    store = rf'asm volatile\("st\.shared\.v2[^;]*?;" ::"r"\((.*?)\),\s*{VALUE},\s*{VALUE} : "memory"\);'
    text = re.sub(store, r"store2(\1, \2, \3);", text, flags=re.S)
    for width, name in (("v4.b32", "load4"), ("b32", "load1")):
        load = rf'asm volatile\("ld\.shared\.{re.escape(width)} .*?: "r"\((.*?)\) : "memory"\);'
        text = re.sub(load, rf"{name}(\1, &value[v]);", text, flags=re.S)
    assert "asm" not in text
    return text


@pytest.mark.parametrize(
    ("columns", "chunk", "blocks", "count", "along_rows", "buffers", "fetched"),
    (
        (256, 32, 1, 8, False, 2, 8),  # what a result needs besides is asked for a piece ahead
        (128, 32, 2, 8, False, 1, 80),  # with the piece
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
    numbers["FETCHED"] = fetched
    constants = [f"constexpr int {name} = {value};" for name, value in numbers.items()]
    constants.append(f"constexpr bool VEC_X = {str(along_rows).lower()};")
    source = tmp_path / "turning.cpp"
    source.write_text("\n".join([*constants, f'#include "{HEADER}"', turning()]))
    program = tmp_path / "turning"
    command = ["g++", "-std=gnu++20", "-O1", "-pthread", "-w", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    assert subprocess.run([str(program)], timeout=60, check=False).returncode == 0
