"""Cases of matmuls: operands as they lie in memory, edges of tiles, and what is done with results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfuse.ir.expr import Expr, apply, cast, const, load
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.symbolic import Index, IndexLike, axis, symbol
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse.testing.cases.case import EXACT, Case, Tolerance
from polyfuse.testing.cases.loops import (
    BF16,
    F16,
    F32,
    F64,
    I64,
    fresh,
    one_case,
    ordinary,
    reads,
    writes,
    zeros,
)

_GROUP = "matmuls"
_I8, _U8, _E4M3 = DType.i8, DType.u8, DType.f8e4m3
_TYPES = (F32, F64, BF16, F16, _E4M3, _I8, _U8)
_ABSOLUTE = {F64: 1e-10, F32: 2e-4, BF16: 0.15, F16: 0.02, _E4M3: 1.5}
"""By type of the results, for sums of some hundred products of plain values."""


@dataclass(frozen=True)
class _Problem:
    """A matmul to be made.

    Attributes:
        rows, columns, depth: its extents; `batch` of them, or one without an axis.
        transposed: operands whose neighbours in memory are rows, or columns, instead of depths.
        shared: whether all of a batch have one right operand.
        finish: what is done with a sum in the type in which it was added up: from the sum, and what is read
            at a column, and at an element of the result.
        rounded: the results' type; by default that of the sums.
        kind: `dot`, or another one of `polyfuse.ir.ops.CONTRACTIONS`.
    """

    rows: IndexLike
    columns: int
    depth: int
    batch: int = 0
    transposed: tuple[bool, bool] = (False, False)
    shared: bool = False
    finish: Callable[[Expr, Expr, Expr], Expr] | None = None
    rounded: DType | None = None
    kind: str = "dot"


def matmul_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file."""
    for dtype in _TYPES:
        yield _case("plain", dtype, _Problem(64, 96, 128))
        yield _case("transposed right", dtype, _Problem(64, 96, 128, transposed=(False, True)))
        yield _case("with all that follows", dtype, _Problem(48, 80, 64, finish=_residual))
    for dtype in (F32, BF16) if quick else _TYPES:
        yield _case("transposed left", dtype, _Problem(64, 96, 128, transposed=(True, False)))
        yield _case("rounded", dtype, _Problem(32, 64, 64, rounded=BF16))
        for extents in ((1, 64, 256), (130, 72, 40), (17, 33, 15)):
            yield _case("{} by {}, depth {}".format(*extents), dtype, _Problem(*extents))
        yield _case("batch", dtype, _Problem(40, 48, 64, batch=3))
        yield _case("batch, one right operand", dtype, _Problem(40, 48, 64, batch=3, shared=True))
        yield _dynamic(dtype)
    yield _case("rounded operands", F32, _Problem(64, 96, 128, kind="dot_tf32"))
    yield _case("sums of few bits", _E4M3, _Problem(64, 96, 128, kind="dot_fast"))


def _residual(sum_: Expr, column: Expr, element: Expr) -> Expr:
    biased = apply("add", sum_, column)
    return apply("add", apply("maximum", biased, const(0, biased.dtype)), element)


def _builder(problem: _Problem, dtype: DType, sizes: tuple[KernelArg, ...]) -> Builder:
    i, j, r = axis("i0", problem.rows), axis("i1", problem.columns), axis("r0", problem.depth)
    m, n, k = problem.rows, problem.columns, problem.depth
    left: IndexLike = r * m + i if problem.transposed[0] else i * k + r
    right: IndexLike = r * n + j if problem.transposed[1] else j * k + r
    element: IndexLike = i * n + j
    axes: tuple[Index, ...] = (i, j)
    count, matrices = max(1, problem.batch), 1 if problem.shared else max(1, problem.batch)
    if problem.batch:
        b = axis("b0", problem.batch)
        axes = (b, *axes)
        left, element = left + b * (m * k), element + b * (m * n)
        right = right if problem.shared else right + b * (n * k)
    summed = accumulates(dtype)
    out = problem.rounded or summed
    args = [reads("in0", dtype, m * k * count, True), reads("in1", dtype, n * k * matrices, True)]
    if problem.finish is not None:
        args += [reads("bias", summed, n, True), reads("added", summed, m * n * count, True)]
    args.append(writes("out0", out, m * n * count))
    builder = Builder("matmul", axes, (r,), (*args, *sizes))
    builder.loop(Carry(("total",), problem.kind, (load("in0", left, dtype), load("in1", right, dtype))))
    value = result("total", summed)
    if problem.finish is not None:
        value = problem.finish(value, load("bias", j, summed), load("added", element, summed))
    elif out is summed:
        # a kernel has something to do with each result
        value = apply("mul", value, const(2, summed))
    builder.once(Store("out0", element, value if out is summed else cast(value, out)))
    return builder


def _case(row: str, dtype: DType, problem: _Problem) -> Case:
    assert isinstance(problem.rows, int)
    builder = _builder(problem, dtype, ())
    run = fresh(*(_made(arg, arg.numel or 0, seed) for seed, arg in enumerate(builder.args)))
    hints = (*((problem.batch,) if problem.batch else ()), problem.rows, problem.columns, problem.depth)
    return one_case(builder, _GROUP, row, str(dtype), (run,), _tolerance(dtype, problem), hints)


def _dynamic(dtype: DType) -> Case:
    """Rows whose number is known at each launch."""
    columns, depth = 48, 64
    problem = _Problem(symbol("s0"), columns, depth, finish=_residual)
    builder = _builder(problem, dtype, (KernelArg("s0", "size", I64, hint=64),))
    summed = accumulates(dtype)
    runs = [
        fresh(
            _plain(dtype, rows * depth, 0),
            _plain(dtype, columns * depth, 1),
            _plain(summed, columns, 2),
            _plain(summed, rows * columns, 3),
            zeros(summed, rows * columns),
            rows,
        )
        for rows in (0, 1, 64, 131)
    ]
    hints = (64, columns, depth)
    return one_case(builder, _GROUP, "dynamic rows", str(dtype), runs, _tolerance(dtype, problem), hints)


def _made(arg: KernelArg, count: IndexLike, seed: int) -> Callable[[], Tensor]:
    assert isinstance(count, int)
    return zeros(arg.dtype, count) if arg.kind == "out" else _plain(arg.dtype, count, seed)


def _plain(dtype: DType, count: int, seed: int) -> Callable[[], Tensor]:
    """Plain numbers, none so large that a sum depends on the order in which it is made."""
    if dtype.is_integer:
        return ordinary(dtype, count, seed)
    return lambda: ordinary(F32, count, seed)().clamp(-3, 3).to(dtype.torch)


def _tolerance(dtype: DType, problem: _Problem) -> Tolerance:
    out = problem.rounded or accumulates(dtype)
    if out.is_integer:
        return EXACT
    # multipliers round f32 operands to ten bits, and add up 8-bit numbers with few bits
    absolute = 0.2 if problem.kind == "dot_tf32" else 0.15 if dtype is _E4M3 else _ABSOLUTE.get(out, 0.0)
    return Tolerance(absolute=absolute, relative=torch.finfo(out.torch).eps * 8, signed_zero=False)
