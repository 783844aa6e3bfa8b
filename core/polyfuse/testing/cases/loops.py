"""Small helpers for the loop cases of the kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyfuse.ir.expr import apply, cast, load
from polyfuse.ir.kernel import KernelArg, RowBuffer
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse.testing.cases.case import EXACT, LOOSE, Case, Operands, Part, Tolerance

F32, F64, BF16, F16 = DType.f32, DType.f64, DType.bf16, DType.f16
I64, I32, U8, BOOL = DType.i64, DType.i32, DType.u8, DType.bool


def reads(name: str, dtype: DType, numel: IndexLike, aligned: bool = False) -> KernelArg:
    """An input buffer."""
    return KernelArg(name, "in", dtype, numel, aligned)


def writes(name: str, dtype: DType, numel: IndexLike, kind: str = "out") -> KernelArg:
    """An output buffer."""
    return KernelArg(name, kind, dtype, numel)


def fresh(*makers: Callable[[], Tensor] | int) -> Callable[[], Operands]:
    """Operands that are made anew for each launch."""
    return lambda: tuple(m if isinstance(m, int) else m() for m in makers)


def ordinary(dtype: DType, count: int, seed: int = 0) -> Callable[[], Tensor]:
    """A tensor of plain values."""
    return lambda: values.plain(dtype, count, seed)


def zeros(dtype: DType, count: int) -> Callable[[], Tensor]:
    """A tensor that a kernel fills."""
    return lambda: torch.zeros(count, dtype=dtype.torch)


def plain_run(builder: Builder) -> Callable[[], Operands]:
    """Operands of a kernel of fixed sizes: plain values, and results of zeros."""
    made = []
    for seed, arg in enumerate(builder.args):
        assert isinstance(arg.numel, int)
        is_result = arg.kind == "out"
        made.append(zeros(arg.dtype, arg.numel) if is_result else ordinary(arg.dtype, arg.numel, seed))
    return fresh(*made)


def softmax_of_rows(name: str, dtype: DType, m: IndexLike, n: IndexLike, *sizes: KernelArg) -> Builder:
    """A softmax in one pass over memory: each of `m` rows of `n` is stored in a row buffer."""
    i, r = axis("i0", m), axis("r0", n)
    args = (reads("in0", dtype, m * n), writes("out0", dtype, m * n), *sizes)
    builder = Builder(name, (i,), (r,), args, (RowBuffer("row", F32, n),))
    value = cast(load("in0", i * n + r, dtype), F32)
    builder.loop(Store("row", r, value), Carry(("m", "s"), "online_softmax", (value,)))
    shifted = apply("exp", apply("sub", load("row", r, F32), result("m", F32)))
    found = apply("div", shifted, result("s", F32))
    builder.loop(Store("out0", i * n + r, cast(found, dtype)))
    return builder


def one_case(
    builder: Builder,
    group: str,
    row: str,
    column: str,
    runs: Sequence[Callable[[], Operands]] = (),
    tolerance: Tolerance | None = None,
    hints: Sequence[int] = (),
) -> Case:
    """The case of one cell: every output of the kernel must be right in every run, `plain_run` where none is
    given.
    """
    parts: list[Part] = []
    for position, arg in enumerate(builder.args):
        if arg.kind in ("out", "inout"):
            chosen = tolerance or (LOOSE if arg.dtype.is_float else EXACT)
            parts.append(Part(group, row, column, position, chosen, nodes=tuple(builder.nodes)))
    return Case(builder.kernel(hints), tuple(runs) or (plain_run(builder),), tuple(parts))
