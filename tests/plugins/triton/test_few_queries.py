"""Attention of few queries: beside eager mode, and through Triton's compiler."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.base.settings import Settings
from polyfuse.ir.types import DType
from polyfuse.plugin import Source
from polyfuse_triton.attention.kernel import few_queries_source, part_length
from polyfuse_triton.attention.lowering import few_queries_kernel
from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.attention.tiles import is_faster, is_possible, tiles_of
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.target import known_target
from triton_few_queries import (
    CASES,
    MEASURED,
    faults,
    faults_of_checked,
    faults_of_what_is_left,
    interpreted_faults,
)
from triton_interpreted import in_interpreter

HOPPER = known_target("sm_90")


def call(batch: int = 8, keys: int = 1024, depth: int = 64, heads: int = 32, bias: bool = True) -> FewQueries:
    """One query of each of 32 heads, 8 of keys, and a bias for all."""
    return FewQueries(
        batch=batch,
        heads=heads,
        queries=1,
        keys=keys,
        key_heads=8,
        depth=depth,
        values=depth,
        dtype=DType.bf16,
        scale=0.125,
        query=(heads * depth, depth, depth, 1),
        key=(8 * keys * depth, keys * depth, depth, 1),
        value=(8 * keys * depth, keys * depth, depth, 1),
        out=(heads * depth, depth, depth, 1),
        bias_dtype=DType.bf16 if bias else None,
        bias=(0, 0, 0, 1) if bias else (),
    )


def test_beside_eager_mode() -> None:
    assert in_interpreter(interpreted_faults, ("parts of whole tiles", "rows apart", "a bias", "alibi")) == []


@pytest.mark.slow
def test_all_cases_beside_eager_mode() -> None:
    assert in_interpreter(interpreted_faults) == []


def test_what_the_library_computes() -> None:
    assert in_interpreter(faults_of_what_is_left) == []


@pytest.mark.parametrize(
    "batch, keys, parts", [(8, 1024, 4), (32, 1024, 1), (1, 1024, 8), (1, 100, 1), (1, 8192, 8)]
)
def test_every_multiprocessor_reads(batch: int, keys: int, parts: int) -> None:
    assert tiles_of(call(batch, keys), HOPPER).parts == parts


@pytest.mark.parametrize("keys", [1, 63, 64, 65, 1000, 1024])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_parts_hold_all_keys(keys: int, parts: int) -> None:
    tiles = Tiles(parts, 64, 4, 3)
    length = part_length(call(keys=keys), tiles)
    assert length % 64 == 0 and length * parts >= keys


def test_what_is_faster() -> None:
    assert is_faster(call(), HOPPER)
    assert not is_faster(call(), known_target("sm_80")), "measured on Hopper alone"
    assert is_possible(replace(call(), queries=4), HOPPER) and is_possible(call(bias=False), HOPPER)
    assert not is_faster(replace(call(), queries=4), HOPPER) and not is_faster(call(bias=False), HOPPER)
    assert not is_possible(replace(call(), queries=5), HOPPER)
    assert not is_faster(call(depth=512), HOPPER)


def compiled(of: FewQueries, tiles: Tiles, arch: int = 90, aligned: bool = True):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = few_queries_source(of, tiles, aligned)
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    return compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False)


def test_keys_are_copied_past_registers() -> None:
    made = compiled(call(), tiles_of(call(), HOPPER))
    assert "cp.async.cg" in made.ptx and "mma.sync" in made.ptx and made.spilled_bytes == 0
    # what the others have stored is read behind the barrier of the cluster
    stores, _, rest = made.ptx.partition("barrier.cluster.arrive.release")
    assert "st.global" in stores and "ld.global.cg" not in stores and "ld.global.cg" in rest


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("depth", [40, 64, 128, 256])
@pytest.mark.parametrize("parts", [1, 8])
def test_compiles_without_spilling(arch: int, depth: int, parts: int) -> None:
    for of in (call(depth=depth), call(depth=depth, bias=False), call(depth=depth, heads=512)):
        tiles = replace(tiles_of(of, HOPPER), parts=parts)
        assert compiled(of, tiles, arch).spilled_bytes == 0
        assert compiled(of, tiles, arch, False).spilled_bytes == 0


@pytest.mark.gpu
def test_on_a_device() -> None:
    assert faults({name: CASES[name] for name in MEASURED}, device="cuda") == []


@pytest.mark.parametrize("defects", [False, True])
def test_under_check(defects: bool) -> None:
    assert in_interpreter(faults_of_checked, defects) == []


@pytest.mark.gpu
@pytest.mark.parametrize("defects", [False, True])
def test_under_check_on_a_device(defects: bool) -> None:
    assert faults_of_checked(defects, "cuda") == []


def test_programs_with_it_can_be_stored() -> None:
    settings = Settings.resolve(None, {})
    kernel = few_queries_kernel(call(), tiles_of(call(), HOPPER), settings)
    again = pickle.loads(pickle.dumps(kernel))
    assert kernel.storable and again.storable and again.key == kernel.key
    other = few_queries_kernel(call(keys=512), tiles_of(call(), HOPPER), settings)
    assert other.key != kernel.key
