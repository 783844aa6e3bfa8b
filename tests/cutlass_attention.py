"""Problems of flexible attention, and the texts of its kernels for Hopper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.flex.call import Written
from polyfuse.flex.problem import GRADIENT, SCORE, Array, Blocks, Problem, score_axes
from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.types import DType
from polyfuse.symbolic import symbol
from polyfuse_cutlass.attention.backward import Totals, backward_source
from polyfuse_cutlass.attention.forward import forward_source
from polyfuse_cutlass.attention.tiles import backward_tiles_of

__all__ = ["CASES", "backward", "forward", "problem_of"]

_S = load(SCORE, 0, DType.f32)
_LENGTH = symbol("length")


def _number(value: float) -> Expr:
    return const(float(value), DType.f32)


def problem_of(
    queries=4096, keys=4096, depth=128, values=0, key_heads=16, masked=False, score="", backward=False, **more
):
    """A call, or with `backward` one with gradients; `more` are fields of the problem."""
    _, h, m, n = score_axes((2, 16, queries, keys))
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
    gradient = load(GRADIENT, 0, DType.f32)
    if score == "cap":
        bent = apply("tanh", apply("div", _S, _number(30)))
        gradient = apply("mul", gradient, apply("sub", _number(1), apply("mul", bent, bent)))
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
        gradient=gradient if backward else None,
        captured=(Array(captured, DType.i64 if score == "documents" else DType.f32, ()),) if captured else (),
    )
    return replace(given, **more)


def _rows(p: Problem, name: str, heads, length, width) -> Array:
    return Array(name, p.dtype, (heads * length * width, length * width, width, 1))


def _operands(p: Problem) -> list[Array]:
    return [
        _rows(p, "q", p.heads, p.queries, p.depth),
        _rows(p, "k", p.key_heads, p.keys, p.depth),
        _rows(p, "v", p.key_heads, p.keys, p.values),
    ]


def _lists(p: Problem) -> Sequence[Blocks]:
    return [
        Blocks(
            Array(f"count{k}", DType.i32, (32, 32, 1)), Array(f"index{k}", DType.i32, (1024, 1024, 32, 1)), k
        )
        for k in (False, True)[: 1 + (p.mask is not None)]
    ]


def forward(p: Problem) -> Written:
    """The kernel of the output."""
    row = (p.heads * p.queries, p.queries, 1)
    results = [_rows(p, "out", p.heads, p.queries, p.values), Array("sums", DType.f32, row)]
    return forward_source(p, _operands(p), _lists(p), results)


def backward(p: Problem) -> Written:
    """The kernel of the gradients."""
    tiles = backward_tiles_of(p)
    row = (p.heads * p.queries, p.queries, 1)
    known = [Array(name, DType.f32, row) for name in ("sums", "common")]
    size = Totals(p, tiles).size
    totals = Array("totals", DType.f32, (size[1] * size[2], size[2], 1))
    results = [
        _rows(p, "to_k", p.key_heads, p.keys, p.depth),
        _rows(p, "to_v", p.key_heads, p.keys, p.values),
    ]
    grad = _rows(p, "g", p.heads, p.queries, p.values)
    return backward_source(p, tiles, [*_operands(p), grad, *known], _lists(p), totals, results)


CASES = {
    "full": problem_of(),
    "full_short": problem_of(depth=64),
    "causal_groups": problem_of(masked=True, key_heads=4),
    "alibi": problem_of(score="alibi"),
    "alibi_short": problem_of(score="alibi", depth=64, queries=1000, keys=777),
    "cap": problem_of(score="cap", masked=True, depth=64),
    "ragged_table": problem_of(queries=1000, keys=777, score="table", depth=96, values=80),
    "documents": problem_of(score="documents", masked=True, depth=64),
    "long": problem_of(depth=256, masked=True),
    "latent": problem_of(depth=192, values=128, masked=True),
    "dynamic": problem_of(queries=_LENGTH, keys=_LENGTH, masked=True, dtype=DType.f16),
}
