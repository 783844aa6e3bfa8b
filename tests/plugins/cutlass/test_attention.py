"""The forward kernel of flexible attention: its text, and compiled for Hopper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutlass_kernels import generated_part, nvcc_options
from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, cast, const, index_value, load
from polyfuse.ir.types import DType
from polyfuse.symbolic import symbol
from polyfuse_cuda.flex.call import Written
from polyfuse_cuda.flex.problem import SCORE, Array, Blocks, Problem, place_axes
from polyfuse_cutlass.attention import lowering
from polyfuse_cutlass.attention.kernel import forward_source
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.target import Target
from requirements import needs_nvcc

_S = load(SCORE, 0, DType.f32)
_LENGTH = symbol("length")


def _number(value):
    return const(float(value), DType.f32)


def _problem(queries=4096, keys=4096, depth=128, values=0, key_heads=16, masked=False, score="", **more):
    _, h, m, n = place_axes((2, 16, queries, keys))
    mask = apply("ge", *(cast(index_value(i), DType.i32) for i in (m, n))) if masked else None
    slope = load("slopes", h, DType.f32)
    away = cast(index_value(n - m), DType.f32)
    scores = {
        "": _S,
        "alibi": apply("add", _S, apply("mul", slope, away)),
        "cap": apply("mul", apply("tanh", apply("div", _S, _number(30))), _number(30)),
        "table": apply("add", _S, load("table", keys * m + n, DType.f32)),
    }
    captured = {"alibi": "slopes", "table": "table"}.get(score)
    if score == "documents":
        mask = apply("bitwise_and", mask, apply("eq", *(load("documents", i, DType.i64) for i in (m, n))))
        scores[score], captured = _S, "documents"
    given = Problem(
        batch=2,
        heads=16,
        queries=queries,
        keys=keys,
        key_batch=2,
        key_heads=key_heads,
        depth=depth,
        values=values or depth,
        mask_batch=1,
        mask_heads=1,
        query_block=128 if masked else 1 << 30,
        key_block=128 if masked else 1 << 30,
        dtype=DType.bf16,
        scale=depth**-0.5,
        exact=True,
        is_fast=True,
        score=scores[score],
        mask=mask,
        gradient=None,
        captured=(Array(captured, DType.i64 if score == "documents" else DType.f32, ()),) if captured else (),
    )
    return replace(given, **more)


def _written(problem: Problem) -> Written:
    p = problem

    def rows(name, heads, length, width):
        return Array(name, p.dtype, (heads * length * width, length * width, width, 1))

    operands = [
        rows("q", p.heads, p.queries, p.depth),
        rows("k", p.key_heads, p.keys, p.depth),
        rows("v", p.key_heads, p.keys, p.values),
    ]
    row = (p.heads * p.queries, p.queries, 1)
    results = [rows("out", p.heads, p.queries, p.values), Array("sums", DType.f32, row)]
    lists = [
        Blocks(
            Array(f"count{k}", DType.i32, (32, 32, 1)), Array(f"index{k}", DType.i32, (1024, 1024, 32, 1)), k
        )
        for k in (False, True)[: 1 + (p.mask is not None)]
    ]
    return forward_source(p, operands, lists, results)


CASES = {
    "full": _problem(),
    "full_short": _problem(depth=64),
    "causal_groups": _problem(masked=True, key_heads=4),
    "alibi": _problem(score="alibi"),
    "cap": _problem(score="cap", masked=True, depth=64),
    "ragged_table": _problem(queries=1000, keys=777, score="table", depth=96, values=80),
    "documents": _problem(score="documents", masked=True, depth=64),
    "long": _problem(depth=256, masked=True),
    "latent": _problem(depth=192, values=128, masked=True),
    "dynamic": _problem(queries=_LENGTH, keys=_LENGTH, masked=True, dtype=DType.f16),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, golden):
    golden(f"cutlass/attention_{name}.txt", generated_part(_written(CASES[name]).source))


@pytest.mark.quick(4)
@needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills(tmp_path, name):
    source = _written(CASES[name]).source
    build_in_worker([source], tmp_path, nvcc_options())
    artifact = read_unit(tmp_path)[source.key]
    assert artifact.spilled == 0 and not artifact.serial


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
        _written(_problem(**change))


def test_refused_without_a_gpu_or_a_compiler(monkeypatch):
    def absent(settings):
        raise BackendUnavailableError("nothing compiles CUDA here", "install nvcc")

    monkeypatch.setattr(lowering, "CutlassBackend", absent)
    with pytest.raises(UnsupportedError, match="nothing compiles CUDA here; install nvcc"):
        lowering.flex_attention(_Context(), None, _Query(), None, None, None, (), 1.0, {})


def test_refused_on_another_gpu(monkeypatch):
    monkeypatch.setattr(lowering, "CutlassBackend", lambda settings: _Backend())
    monkeypatch.setattr(lowering, "is_hopper", lambda device: device != "cuda:1")
    with pytest.raises(UnsupportedError, match="only a Hopper"):
        lowering.flex_attention(_Context(), None, _Query(), None, None, None, (), 1.0, {})


class _Context:
    settings = Settings()


class _Query:
    device = "cuda:1"


class _Backend:
    target = Target()
