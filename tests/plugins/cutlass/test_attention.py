"""The kernels of flexible attention: their texts, and compiled for Hopper."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cutlass_attention import CASES, backward, forward, problem_of
from cutlass_attention_emulated import EMULATED, emulated_faults
from cutlass_kernels import generated_part, nvcc_options
from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.types import DType
from polyfuse.symbolic import symbol
from polyfuse_cutlass.attention import lowering
from polyfuse_cutlass.attention.backward import Totals
from polyfuse_cutlass.attention.tiles import BackwardTiles
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.target import Target
from requirements import TRITON, needs_nvcc

SHORTER = {
    name: problem_of(**given, backward=True)
    for name, given in {
        "full": {},
        "causal_groups": {"masked": True, "key_heads": 4},
        "alibi": {"score": "alibi", "depth": 64},
        "cap": {"score": "cap", "masked": True, "depth": 64},
        "ragged_table": {"queries": 1000, "keys": 777, "score": "table", "depth": 96, "values": 80},
        "dynamic": {
            "queries": symbol("length"),
            "keys": symbol("length"),
            "masked": True,
            "dtype": DType.f16,
        },
    }.items()
}
"""Calls whose gradients have room in registers."""


@pytest.mark.parametrize("name", CASES)
def test_text(name, golden):
    golden(f"cutlass/attention_{name}.txt", generated_part(forward(CASES[name]).source))


@pytest.mark.quick(1)
@needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills(tmp_path, name):
    source = forward(CASES[name]).source
    build_in_worker([source], tmp_path, nvcc_options())
    artifact = read_unit(tmp_path)[source.key]
    assert artifact.spilled == 0 and not artifact.serial


@pytest.mark.parametrize("name", SHORTER)
def test_text_of_gradients(name, golden):
    golden(f"cutlass/attention_backward_{name}.txt", generated_part(backward(SHORTER[name]).source))


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", SHORTER)
def test_gradients_compile(tmp_path, name):
    source = backward(SHORTER[name]).source
    build_in_worker([source], tmp_path, nvcc_options())
    artifact = read_unit(tmp_path)[source.key]
    # two registers, which are read once for each tile
    assert artifact.spilled <= 8 and not artifact.serial


@pytest.mark.parametrize(("rows", "depth"), ((64, 128), (128, 64)))
def test_gradients_of_queries_are_where_threads_put_them(rows, depth):
    sizes = SimpleNamespace(batch=2, heads=3, queries=rows + 5)
    totals = Totals(sizes, BackwardTiles(rows, depth))
    assert totals.size == (2, 3, 2 * rows * depth)
    wide = rows == 64
    for tile in range(2):
        for group in range(2):
            for thread in range(128):
                for n in range(8):
                    for k in range(4):
                        # as the multiplier leaves results in registers
                        m = thread // 32 * 16 + thread % 32 // 4 + 8 * (k // 2)
                        d = 8 * n + thread % 4 * 2 + k % 2
                        at = (m, 64 * group + d) if wide else (64 * group + m, d)
                        offset = (tile * 8 + n) * 1024 + (group * 128 + thread) * 4 + k
                        assert totals.offset(tile * rows + at[0], at[1]) == offset


@pytest.mark.parametrize(
    ("change", "reason"),
    (
        ({"depth": 256}, "no room in registers"),
        ({"queries": 100}, "too few queries"),
        ({"dtype": DType.f32}, "not multiplied"),
        ({"depth": 64, "masked": True, "query_block": 64}, "no multiples of 128"),
    ),
)
def test_gradients_refused(change, reason):
    with pytest.raises(UnsupportedError, match=reason):
        backward(problem_of(**change, backward=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    (
        ({"dtype": DType.f32}, "not multiplied"),
        ({"queries": 64}, "too few queries"),
        ({"masked": True, "key_block": 96}, "no multiples of 128"),
        ({"masked": True, "query_block": 64}, "no multiples of 128"),
        ({"depth": 20}, "multiple of 16 bytes"),
        ({"score": "table", "values": 33}, "multiple of 16 bytes"),
    ),
)
def test_refused(change, reason):
    with pytest.raises(UnsupportedError, match=reason):
        forward(problem_of(**change))


def test_refused_without_a_gpu_or_a_compiler(monkeypatch):
    def absent(settings):
        raise BackendUnavailableError("nothing compiles CUDA here", "install nvcc")

    monkeypatch.setattr(lowering, "CutlassBackend", absent)
    with pytest.raises(UnsupportedError, match="nothing compiles CUDA here; install nvcc"):
        lowering.HopperKernels(_Context(), "cuda:1")


def test_refused_on_another_gpu(monkeypatch):
    monkeypatch.setattr(lowering, "CutlassBackend", lambda settings: _Backend())
    monkeypatch.setattr(lowering, "is_hopper", lambda device: device != "cuda:1")
    with pytest.raises(UnsupportedError, match="only a Hopper"):
        lowering.HopperKernels(_Context(), "cuda:1")


class _Context:
    settings = Settings()


class _Backend:
    target = Target()


def test_gradients_in_any_order_are_refused_where_they_must_be_equal():
    class Context:
        settings = Settings(deterministic="on")

    with pytest.raises(UnsupportedError, match="added up in any order"):
        lowering.HopperKernels(Context(), "cuda:1", ())


@pytest.mark.parametrize(
    "name", [n if n == "short" else pytest.param(n, marks=pytest.mark.slow) for n in EMULATED]
)
def test_gradients_in_a_graph(name):
    pytest.importorskip("triton", reason=TRITON)
    from triton_interpreted import in_interpreter

    assert in_interpreter(emulated_faults, name) == []


@pytest.mark.parametrize(
    ("name", "defect"),
    [
        ("long", "keys"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [*((name, "") for name in EMULATED), ("short", "sums"), ("dynamic", "keys")]
        ),
    ],
)
def test_the_checker_compares_the_backward(name, defect):
    pytest.importorskip("triton", reason=TRITON)
    from triton_interpreted import in_interpreter

    assert in_interpreter(emulated_faults, name, "first", defect) == []
