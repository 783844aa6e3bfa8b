"""What the scheduler should know of a GPU."""

from __future__ import annotations

from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse_triton.target import FEW_ROWS, STREAMING, Target

_BLOCKS = 4
"""Programs on each multiprocessor that hide the latency of memory."""
_SIZE_CLASSES = tuple((1 << power) + 1 for power in range(4, 15))
"""Behind each power of two, a tile that holds a whole row is twice as large."""

_SIZE_MULTIPLE = 8
"""Rows of so many elements of 16 bits begin at multiples of 16 bytes, the most that a thread loads."""

_REPEATED_ROW = 8192
"""Elements of a row that a program holds in registers."""

_BIASED_ROWS = 24
"""Of f32. With up to 16, cuBLAS's matmul alone took up to nine times as long as cuBLASLt's with a bias; with
24 and more half as long, or as long.
"""

_FEWEST_TRANSPOSED = 17
"""Rows from which on four warps multiply together."""


def target_info_of(target: Target, column_reductions: bool = False) -> TargetInfo:
    """The shape of a GPU: hundreds of programs at once, rows in registers, kernels that are dear to start."""
    return TargetInfo(
        blocks=_BLOCKS * target.multiprocessors,
        lanes=64,
        split_chunk=8192,
        row_bytes=64 << 10,
        few_rows=target.multiprocessors,
        long_row=16 << 10,
        two_pass_row=16 << 10,
        licm=False,
        launch_bytes=4 << 20,
        transposed_rows=(_FEWEST_TRANSPOSED, FEW_ROWS) if target.arch >= STREAMING else (0, 0),
        paired_gemm_rows=FEW_ROWS if target.arch >= STREAMING else 0,
        column_reductions=column_reductions,
        repeated_row=_REPEATED_ROW,
        alignment=16,
        channels_last=frozenset({DType.f16, DType.bf16}),
        channels_last_weights=True,
        separate_gemm_add=True,
        separate_bias_rows=_BIASED_ROWS,
        separate_convolution_bias=True,
        scans_look_back=True,
        bandwidth=target.bandwidth,
        operations=target.matmul_operations,
        double_sums=False,
        size_classes=_SIZE_CLASSES,
        size_multiple=_SIZE_MULTIPLE,
    )
