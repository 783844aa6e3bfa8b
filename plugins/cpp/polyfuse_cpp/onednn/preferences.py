"""Which calls the library is faster at, as was measured: known without timing."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from pathlib import Path

import torch

from polyfuse.ir.nodes import View
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite
from polyfuse.symbolic import evaluate
from polyfuse_cpp.isa import detect_isa_name
from polyfuse_cpp.onednn.layouts import order
from polyfuse_cpp.onednn.linear import operands

_FEW_PAIRS = 1 << 23
"""Multiplications up to which MKL is as fast or faster: a call of oneDNN costs 13 microseconds more, and
gains a tenth of the rest (one thread of Zen 4, MKL of torch 2.13: half as many take 1.04 to 1.11 times as
long, an eighth 1.4 to 1.6)."""

_NARROW = (12, 8), (32, 2)
"""Columns up to which MKL loses more, and by what the number above is divided for them."""

_LANES = 16
"""Numbers in a register of AVX-512."""

_ROWS_READ_ONCE = 2
"""Rows for which laying out the other matrix takes longer than the matmul."""

_COLUMNS_READ_ONCE = 4
"""Columns of a layer's weight with which MKL multiplies rows as fast as memory brings them."""

_COLUMNS_LAID_OUT_FOR = range(2, 13), 1024
"""Numbers of columns for which rows that are contiguous along the other axis are laid out by oneDNN in less
time than MKL loses: few, which MKL does badly, and from the second on, where the matmul is long.
"""


def beats_mkl(site: CallSite) -> bool:
    """Whether torch would call MKL on a CPU whose AVX-512 it does not use, since another maker's. There,
    oneDNN takes less time (0.9 of it on Zen 4), with few rows as with hundreds, but for small
    matmuls, and but for a row or two of a matrix whose rows are contiguous: oneDNN lays it out first, which
    takes longer than reading it (2048x2048: 1.38 and 0.37 ms for one row, 1.50 and 0.89 for two, 1.76 and
    2.05 for four). So it does with rows that are transposed, as in a weight's gradient. With AVX2 alone, MKL
    is the faster one, by 3 to 25 %.
    """
    _, rows, weight = operands(site)
    extents = _extents(site)
    if not extents or _is_narrow(site) or _is_laid_out(rows, weight, extents):
        return False
    few = _FEW_PAIRS // next((by for columns, by in _NARROW if extents[-1] <= columns), 1)
    return prod(extents) >= few and torch.backends.mkl.is_available() and mkl_leaves_lanes()


_ROWS_OF_PAIRS = 16
"""Rows from which 16-bit numbers of a packed weight fill the library's tiles."""


def narrow_packed_pays(site: CallSite) -> bool:
    """Whether a matmul of 16-bit numbers spends its time on the layout of its weight, which the library's
    instructions want in pairs, and which torch has laid out at each call; what follows costs passes of its
    own there. Few rows are bound by reading the weight.
    """
    extents = _extents(site)
    return _is_narrow(site) and bool(extents) and extents[0] >= _ROWS_OF_PAIRS


def _extents(site: CallSite) -> list[int]:
    """Rows, depth and columns of a matmul, by the likely values of what varies; empty where nobody can guess
    one.
    """
    _, rows, weight = operands(site)
    try:
        return [evaluate(extent, site.hints) for extent in (*rows.size, weight.size[1])]
    except KeyError:
        return []


def _is_narrow(site: CallSite) -> bool:
    """Whether the operands of a matmul have 16 bits."""
    return site.buffers[operands(site)[2].buffer].dtype is not DType.f32


def _is_laid_out(rows: View, weight: View, extents: list[int]) -> bool:
    """Whether oneDNN would spend more time on the layout of an operand than it saves."""
    count, depth, columns = extents
    if columns == 1:
        return True
    if count <= _ROWS_READ_ONCE and weight.stride[1] == 1 and weight.stride[0] != 1:
        return True
    if rows.stride[0] == 1 and rows.stride[1] != 1:
        few, many = _COLUMNS_LAID_OUT_FOR
        return columns not in few and columns < many
    return weight.stride[0] == 1 and columns <= _COLUMNS_READ_ONCE and depth >= 2 * _LANES


def mkl_leaves_lanes() -> bool:
    """Whether MKL does not use AVX-512 here, though the CPU has it."""
    return vendor() not in ("", "GenuineIntel") and detect_isa_name() == "avx512"


_LARGE_WEIGHT = 1 << 16
"""Numbers from which laying a weight out takes longer than finding out that it has not changed."""


def packing_pays(site: CallSite) -> bool:
    """Whether laying out the weight of a convolution is a large part of it: a fourth, where the window is 3x3
    and the image 7x7. Weights of 1x1 windows are laid out at the speed of memory, small ones in no time, but
    for those of 16 bits, which the library's instructions want in pairs.
    """
    weight = site.call.args[1]
    wide = prod(n for n in weight.size[2:] if isinstance(n, int)) > 1
    narrow = site.buffers[weight.buffer].dtype is not DType.f32
    return (wide or narrow) and fusing_pays(site) and _numel(weight) >= _LARGE_WEIGHT


def _numel(view: View) -> int:
    return prod(n for n in view.size if isinstance(n, int))


def fusing_pays(site: CallSite) -> bool:
    """Whether the channels come last: otherwise the library spends its time on other layouts."""
    return site.inference and "last" in order(site.call.args[0]) and "last" in order(site.output)


@lru_cache(maxsize=1)
def vendor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Who made the CPU, where it is an x86-64 and the system says."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    words = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in words if key.strip() == "vendor_id"), "")
