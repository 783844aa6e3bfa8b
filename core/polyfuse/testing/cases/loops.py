"""Small helpers for the loop cases of the kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder
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


def one_case(
    builder: Builder,
    group: str,
    row: str,
    column: str,
    runs: Sequence[Callable[[], Operands]],
    tolerance: Tolerance | None = None,
    hints: Sequence[int] = (),
) -> Case:
    """The case of one cell: every output of the kernel must be right in every run."""
    parts: list[Part] = []
    for position, arg in enumerate(builder.args):
        if arg.kind in ("out", "inout"):
            chosen = tolerance or (LOOSE if arg.dtype.is_float else EXACT)
            parts.append(Part(group, row, column, position, chosen, nodes=tuple(builder.nodes)))
    return Case(builder.kernel(hints), tuple(runs), tuple(parts))
