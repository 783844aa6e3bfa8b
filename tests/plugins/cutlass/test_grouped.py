"""Products of groups of rows: which calls are taken, the kernel's text, and the tiles that it takes."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from polyfuse.ir.nodes import Buffer, TemplateCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.codegen import grouped as module
from polyfuse_cutlass.codegen.grouped import TILES, applies, configs, grouped, grouped_choices
from polyfuse_cutlass.codegen.text import device_text
from polyfuse_cutlass.launch.launcher import resolved
from polyfuse_cutlass.manifest import polyfuse_choices
from requirements import GXX, needs_nvcc

ROWS, DEPTH, COLUMNS, GROUPS = 512, 256, 320, 8


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(module, "has_hopper", lambda: True)


def site(along: bool = False, dtype: DType = DType.bf16, **changes: Any) -> CallSite:
    """A call with rows `a`, matrices `b` and ends `e`; changes of its views or of buffers by name."""
    name = str(dtype.torch).removeprefix("torch.")
    plain = {"dtype": dtype, "device": "cuda:0", "torch_dtype": name, "kind": "input"}
    buffers = {
        "a": Buffer("a", size=(ROWS, DEPTH), stride=(DEPTH, 1), **plain),
        "b": Buffer("b", size=(GROUPS, DEPTH, COLUMNS), stride=(DEPTH * COLUMNS, COLUMNS, 1), **plain),
        "e": Buffer("e", DType.i32, "cuda:0", (GROUPS,), (1,), "int32", "input"),
        "o": Buffer("o", size=(ROWS, COLUMNS), stride=(COLUMNS, 1), **{**plain, "kind": "temp"}),
    }
    views = {
        "a": View("a", (ROWS, DEPTH), (DEPTH, 1)),
        "b": View("b", (GROUPS, DEPTH, COLUMNS), (DEPTH * COLUMNS, *((COLUMNS, 1) if along else (1, DEPTH)))),
        "e": View("e", (GROUPS,), (1,)),
    }
    for key, change in changes.items():
        (buffers if key == "o" or isinstance(change, Buffer) else views)[key[0]] = change
    call = TemplateCall(
        "c", "aten._grouped_mm.default", (views["a"], views["b"]), (("offs", views["e"]),), ("o",)
    )
    return CallSite(call, buffers)


@pytest.mark.parametrize("along", (False, True))
@pytest.mark.parametrize("dtype", (DType.bf16, DType.f16))
def test_rows_in_groups_are_taken(along, dtype):
    assert applies(site(along, dtype))


A = View("a", (ROWS, DEPTH), (DEPTH, 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    (
        ({"a": replace(A, stride=(DEPTH + 1, 1))}, "multiples of 16 bytes"),
        ({"a": replace(A, stride=(1, ROWS))}, "does not run along"),
        ({"a": replace(A, offset=4)}, "may not begin"),
        ({"a": View("a", (GROUPS, 64, DEPTH), (64 * DEPTH, DEPTH, 1))}, "not groups of rows"),
        ({"e": View("e", (GROUPS,), (2,))}, "side by side"),
        ({"e_": Buffer("e", DType.i64, "cuda:0", (GROUPS,), (1,), "int64")}, "side by side"),
        ({"a_": Buffer("a", DType.f16, "cuda:0", (ROWS, DEPTH), (DEPTH, 1), "float16")}, "of one type"),
        ({"e": None}, "no groups"),
    ),
)
def test_others_are_not(changes, reason):
    answer = applies(site(**changes))
    assert not answer and reason in answer.reason


def test_other_types_are_not():
    assert "16 bits" in applies(site(dtype=DType.f32)).reason


def test_a_hopper_is_needed(monkeypatch):
    monkeypatch.setattr(module, "has_hopper", lambda: False)
    assert "Hopper" in applies(site()).reason


def test_it_is_offered_on_nvidia_gpus():
    assert polyfuse_choices("cpu") == () and [one.name for one in polyfuse_choices("cuda")] == ["grouped"]
    assert grouped_choices("cuda")[0].ops == ("aten._grouped_mm.default",)


def test_text(golden):
    made = grouped(site(along=True), None)
    start = made.source.text.index("namespace in_")
    body = made.source.text[start : made.source.text.index("// GEMMs of groups")]
    golden("cutlass/grouped.txt", body + made.source.meta + f"\n{made.operands}")


def test_sizes_are_no_part_of_the_text():
    smaller = replace(A, size=(64, DEPTH))
    assert grouped(site(), None).source.key == grouped(site(a=smaller), None).source.key
    assert len({grouped(site(), config).source.key for config in configs(site())}) == len(TILES)


def test_operands_are_described_to_the_copy_engine():
    for along in (False, True):
        made = grouped(site(along), None)
        sizes = resolved(KernelMeta.parse(made.source.meta), made.operands[4:])
        inner = (COLUMNS, DEPTH, GROUPS) if along else (DEPTH, COLUMNS, GROUPS)
        assert sizes.extents == ((DEPTH, ROWS, 1), inner)
        assert sizes.strides == ((2 * DEPTH, 16), (2 * inner[0], 2 * DEPTH * COLUMNS))
        # each group may begin a tile
        assert sizes.tiles == (ROWS // 128 + GROUPS) * 2


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("along", "every"),
    [(True, 3), *(pytest.param(along, 1, marks=pytest.mark.slow) for along in (False, True))],
)
def test_compiles_without_spills(tmp_path, along, every):
    sources = [grouped(site(along), config).source for config in list(configs(site()))[::every]]
    compiler = find_compiler("nvcc")
    options = {"compiler": "nvcc", "path": compiler.path, "version": compiler.version, "arch": "sm_90a"}
    build_in_worker(sources, tmp_path, options)
    for artifact in read_unit(tmp_path).values():
        assert artifact.spilled == 0 and not artifact.serial


WALK = """
#include <algorithm>
#include <cstdio>
#include <cstdlib>
using std::max; using std::min;
#define PF_INLINE inline
typedef long long i64; typedef int i32;
constexpr int ROWS = 128, COLUMNS = 192;
struct Args { i64 rows, columns, groups, ends_at; const i32* ends; };
struct Dim { int x; } blockIdx, gridDim;
template <class T> T read_only(const T* p) { return *p; }
TILES
int main(int n, char** given) {
  i32 ends[64];
  for (int i = 4; i < n; ++i) ends[i - 4] = atoi(given[i]);
  Args args{atoi(given[1]), atoi(given[2]), n - 5, 1, ends};
  gridDim.x = atoi(given[3]);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (Tiles tiles(args); tiles.valid(); tiles.next())
      printf("%d %d %d %d\\n", tiles.group, tiles.row, tiles.end, tiles.column);
}
"""


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """The tiles of all blocks, for sizes and ends of groups."""
    if shutil.which("g++") is None:
        pytest.skip(GXX)
    folder = tmp_path_factory.mktemp("walk")
    text = device_text("grouped.cuh")
    tiles = text[text.index("struct Tiles {") : text.index("PF_INLINE void produce")]
    (folder / "walk.cpp").write_text(WALK.replace("TILES", tiles))
    subprocess.run(["g++", "-std=c++17", "-o", str(folder / "walk"), str(folder / "walk.cpp")], check=True)

    def run(rows: int, columns: int, blocks: int, ends: list[int]) -> list[tuple[int, ...]]:
        # one number stands before the ends, which the kernel must skip
        command = [str(folder / "walk"), *map(str, (rows, columns, blocks, 999, *ends))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [tuple(map(int, line.split())) for line in said.splitlines()]

    return run


CASES = (
    [128, 128, 300],
    [0, 0, 5, 5, 261],
    [],
    [0],
    [1000],
    [7, 7, 7],
    sorted(random.Random(4).choices(range(900), k=40)),
)


@pytest.mark.parametrize(("ends", "blocks"), list(itertools.product(CASES, (1, 7, 132))))
def test_every_result_is_in_one_tile_of_its_group(walk, ends, blocks):
    rows, columns = 900, 200
    seen: dict[tuple[int, int], int] = {}
    for group, row, end, column in walk(rows, columns, blocks, ends):
        assert column in (0, 192) and row < end <= rows
        for one in range(row, min(row + 128, end)):
            assert (one, column) not in seen
            seen[one, column] = group
    wanted = {}
    for group, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        wanted |= {(row, column): group for row in range(begin, min(end, rows)) for column in (0, 192)}
    assert seen == wanted
