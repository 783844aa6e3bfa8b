"""What the backend is asked while code is generated. Kernels that were built before are loaded without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from polyfuse.ir.expr import walk
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan, Scatter
from polyfuse.ir.ops import CHECK_MODE, CONTRACTIONS, SCANS
from polyfuse.ir.types import DType
from polyfuse.plugin import Claim, Config, No, Yes
from polyfuse.symbolic import axis_name, axis_size, coefficient, evaluate
from polyfuse_cpp.cuts.residues import planned
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.isa import Isa, has_matrix_registers, has_pair_products
from polyfuse_cpp.loop_estimate import loop_seconds
from polyfuse_cpp.loops.entry import KernelText, plainly_named
from polyfuse_cpp.loops.group import distinct_parts, grouped_text
from polyfuse_cpp.loops.kernel import kernel_text
from polyfuse_cpp.loops.ops import unsupported_op
from polyfuse_cpp.loops.reductions import KINDS
from polyfuse_cpp.matmul.groups.stored import reads_stored
from polyfuse_cpp.matmul.paths import configs_of, plan_of
from polyfuse_cpp.matmul.plans import matmul_plans, nearby_plans, plan_seconds
from polyfuse_cpp.matmul.problem import FEW_PIXELS, has_matmul, matmul_of
from polyfuse_cpp.matmul.split_k import matmul_text
from polyfuse_cpp.matmul.tiled.padded import SMALL_WEIGHT, pixels_of
from polyfuse_cpp.matmul.tiled.turned import lies_along_depth, may_turn
from polyfuse_cpp.onednn.preferences import mkl_leaves_lanes
from polyfuse_cpp.packed_blocks import (
    fills_matrix_registers,
    is_part,
    lies_along_columns,
    multiplies_pairs,
    packed_width,
)
from polyfuse_cpp.prelude import store_modes
from polyfuse_cpp.tiling import lane_choices


def claim(node: Node) -> Claim:
    """All loop nodes on values of the IR's types; anything else is another backend's."""
    if not isinstance(node, LoopNode):
        return No(f"{type(node).__name__} is not a loop")
    if isinstance(node, Reduction) and node.kind not in (*KINDS, *CONTRACTIONS):
        return No(f"the reduction {node.kind} is unknown")
    if isinstance(node, Scan) and (node.kind not in SCANS or len(node.raxes) != 1):
        return No(f"the scan {node.kind} over {len(node.raxes)} axes is unknown")
    if isinstance(node, Scatter) and node.mode not in (*store_modes(), CHECK_MODE):
        return No(f"the store mode {node.mode} is unknown")
    for expr in walk(*node.expressions()):
        operand = expr.args[-1].dtype if expr.args else expr.dtype
        reason = unsupported_op(expr.op, operand)
        if reason:
            return No(reason)
    return Yes()


def configs(kernel: Kernel, isa: Isa) -> Sequence[Config]:
    """Other lane axes and, where something is accumulated, other numbers of vectors side by side; for a
    matmul, other tiles and other ways to read its operands.
    """
    if kernel.parts:
        return ()
    if has_matmul(kernel):
        return configs_of(matmul_plans(matmul_of(kernel), isa))
    if isa.lanes == 1:
        return ()
    facts = Facts.of(kernel)
    found = [Config()]
    if facts.raxes:
        found.extend(Config.of(unroll=count) for count in (1, 2, 4, 8))
    lanes = lane_choices(facts)
    if len(lanes) > 1:
        found.extend(Config.of(lane=position) for position in lanes)
    return found if len(found) > 1 else ()


_FEWEST_PIXELS = 4
"""Pixels from which on a kernel for a convolution of all channels under a window is as fast as a library."""
_SEVERAL = 2
"""The same of groups of channels, and over space and time; of a window of 1x1, one is enough."""
_SMALL_WEIGHT = 1 << 16
"""Elements of a weight that, up to `FEW_PIXELS`, is better packed at each call than compared."""
_PACKED_PIXELS = range(16, 1025)
"""Pixels under windows of 1x1 whose weight is better packed once than at each call, with `freezing`: fewer
read it as it is, and more do not notice.
"""
_MOSTLY = 0.94
"""Part of the taps of a dilated window in the image, from which on a kernel is as fast as a library."""
_FEW_TAPS = 9
"""Taps of a dilated window over an image of one channel, whose tiles take longer to gather, number by number,
than to multiply.
"""
_MOST_PARTIAL = 5
"""Vectors of channels from which on a library is as fast where they fill no whole ones."""
_SMALL_PRODUCTS, _RUN, _SHORT_LINE = 1 << 21, 8, 32
"""Multiplications with one image, those of lanes beyond the last channel too, up to which calling a library
takes longer: of so many channels, or of lines that are one tile. Others are gathered where tiles have two.
"""
_MOST_ROWS, _FEW_PRODUCTS = 256, 1 << 26
"""Rows, or multiplications, of a linear layer of bf16 up to which a kernel is faster than a library: beyond,
both take as long."""
_MOST_PLAIN_ROWS = 512
"""The same of rows whose weight is not packed once: the library packs it at each call."""
_MANY_THREADS, _ROWS_SHARED = 8, 1536
"""From so many threads on, a kernel is faster up to so many rows."""
_FEWEST_PACKED = 17
"""Rows from which on many threads may pack a weight whose columns lie side by side at each call."""
_MOST_STORED, _DEEP_ENOUGH = 512, 256
"""Rows of a linear layer of f32 up to which a kernel is faster than a library though its weight was not
packed before, and the depth from which adding up lanes does not matter: it reads the weight along its depth,
or packs each part of it while it is near, and asks for the next one.
"""
_MANY_ROWS, _NEAR_WEIGHT = 1024, 256 << 10
"""Rows of such a layer from which packing its weight at each call does not count, if it has so few bytes that
it stays near.
"""
_MOST_STORED_FAR, _FAR_WEIGHT = 128, 4 << 20
"""The same of rows, if the weight has more bytes, where the library is oneDNN."""
_MOST_PAIRED, _PAIRED_ROWS, _NEAR_PAIRS = 2048, 512, 512 << 10
"""Rows of a layer of bf16 without matrix registers up to which a kernel that lays its weight out at each call
is as fast as a library that does, and as one whose weight was packed; bytes of a weight with which it is
anyway.
"""
_WIDE = 64
"""Bytes of the registers of AVX-512."""
_PLANE, _SPACE_AND_TIME = 2, 3
"""Axes of a window over an image, and over space and time."""


def most_rows(threads: int, packed: bool, isa: Isa) -> int:
    """Rows of a linear layer of bf16 up to which its kernel is faster than the library, whatever its size."""
    if has_pair_products(isa) and not has_matrix_registers(isa):
        return _PAIRED_ROWS if packed else _MOST_PAIRED
    if threads >= _MANY_THREADS:
        return _ROWS_SHARED
    return _MOST_ROWS if packed else _MOST_PLAIN_ROWS


def prefers(matmul: Reduction, hints: Mapping[str, int], isa: Isa, rows: int = _MOST_ROWS) -> bool:
    """Whether a kernel for a convolution, or for a linear layer whose weight is packed once, is faster than a
    call of the library with what follows it; `rows`: as of `most_rows`.
    """
    pixels, grouped = _pixels(matmul, hints)
    taps = matmul.raxes[1:]
    if len(matmul.axes) == 2 and len(matmul.raxes) == 1:
        if _beats_packing_again(matmul, isa):
            return _rows(matmul, hints) > 1
        if multiplies_pairs(matmul, isa):
            count = _rows(matmul, hints)
            return 1 < count <= rows or (count > rows and _weight_bytes(matmul) <= _NEAR_PAIRS)
        return fills_matrix_registers(matmul, isa) and _has_few_rows(matmul, hints, rows)
    if fills_matrix_registers(matmul, isa):
        flat = all(axis_size(a) == 1 for a in taps)
        return not grouped and pixels > 1 and (flat or _tiles_windows(matmul, isa))
    if isa.lanes == 1 or any(value.dtype is not DType.f32 for value in matmul.values):
        return False
    depth = prod(axis_size(a) for a in matmul.raxes)
    if grouped and is_part(matmul, isa):
        return pixels > 1  # as fast as the library's, which has passes behind it and threads of its own
    if not grouped and all(axis_size(a) == 1 for a in taps):
        # one number is no matrix
        return pixels > 1 or (pixels == 1 and axis_size(matmul.axes[1]) != 1)
    if _inside(matmul, hints) < _MOSTLY:
        return False
    channels = axis_size(matmul.axes[1])
    if not grouped and isinstance(channels, int) and channels % isa.lanes and prepacks(matmul, hints, isa):
        # with few channels, or with many, empty lanes cost more than a library, but for its call
        small = _is_small(matmul, pixels, depth, -(-channels // isa.lanes) * isa.lanes)
        if not small and not isa.lanes < channels < _MOST_PARTIAL * isa.lanes:
            return False
    gathered = (
        axis_size(matmul.raxes[0]) == 1 and coefficient(matmul.values[0].index, axis_name(taps[-1])) != 1
    )
    few_taps = gathered and isinstance(depth, int) and depth <= _FEW_TAPS
    alone = grouped or len(taps) == _SPACE_AND_TIME
    return not few_taps and pixels >= (_SEVERAL if alone else _FEWEST_PIXELS)


def _is_small(matmul: Reduction, pixels: int, depth: object, channels: int) -> bool:
    """Whether a convolution is so small that what a library's call costs is more than it."""
    images, line, inside = (axis_size(a) for a in (matmul.axes[0], matmul.axes[-1], matmul.raxes[0]))
    if images != 1 or not isinstance(line, int) or not isinstance(inside, int) or not isinstance(depth, int):
        return False
    return pixels * depth * channels <= _SMALL_PRODUCTS and (inside >= _RUN or line <= _SHORT_LINE)


def _beats_packing_again(matmul: Reduction, isa: Isa) -> bool:
    """Whether a linear layer of f32 is faster with its weight packed once, or of few rows read as it is, than
    by MKL, which packs it at each call, or oneDNN, both of which leave what follows to further passes: with
    AVX-512, where columns are whole blocks.
    """
    columns = axis_size(matmul.axes[1])
    if any(value.dtype is not DType.f32 for value in matmul.values) or isa.register_bytes < _WIDE:
        return False
    return isinstance(columns, int) and columns % (2 * isa.lanes) == 0


def _reads_as_stored(matmul: Reduction, hints: Mapping[str, int]) -> bool:
    """Whether a linear layer of f32 has so few rows, or a weight of so few bytes, that reading it as it is
    stored, at each call, is faster than the library.
    """
    steps, rows, size = axis_size(matmul.raxes[0]), _rows(matmul, hints), _weight_bytes(matmul)
    if not lies_along_depth(matmul) or not isinstance(steps, int) or size == inf:
        return False
    most = _MOST_STORED_FAR if size > _FAR_WEIGHT and mkl_leaves_lanes() else _MOST_STORED
    near = rows >= _MANY_ROWS and size <= _NEAR_WEIGHT
    return near or (steps >= _DEEP_ENOUGH and 1 < rows <= most)


def _packs_vectors(matmul: Reduction, hints: Mapping[str, int], isa: Isa) -> bool:
    """Whether a linear layer has so many rows that packing its weight at each call, whose columns lie side by
    side, does not count.
    """
    several = _rows(matmul, hints) >= _FEWEST_PACKED
    return several and lies_along_columns(matmul) and packed_width(matmul, isa) > 0


def _weight_bytes(matmul: Reduction) -> float:
    """Bytes of the weight of a linear layer; infinite where they vary."""
    count = prod(axis_size(a) for a in (matmul.axes[1], *matmul.raxes))
    return count * matmul.values[1].dtype.itemsize if isinstance(count, int) else inf


def _rows(matmul: Reduction, hints: Mapping[str, int]) -> int:
    """Rows of a linear layer; 0: nobody can guess."""
    try:
        return evaluate(axis_size(matmul.axes[0]), hints)
    except KeyError:
        return 0


def _has_few_rows(matmul: Reduction, hints: Mapping[str, int], most: int) -> bool:
    """Whether matrix registers take less time for a linear layer than a call of the library and the passes of
    what follows it.
    """
    try:
        rows, columns, depth = (evaluate(axis_size(a), hints) for a in (*matmul.axes, *matmul.raxes))
    except KeyError:
        return False
    return 1 < rows <= most or 1 < rows * columns * depth <= _FEW_PRODUCTS


def _tiles_windows(matmul: Reduction, isa: Isa) -> bool:
    """Whether windows of bf16 can be computed in matrix registers: the weight is packed once, or is small."""
    image, (channels, *taps) = matmul.values[0], matmul.raxes
    for row, tap in zip(matmul.axes[-len(taps) :], taps, strict=True):
        step, apart = (coefficient(image.index, axis_name(a)) for a in (row, tap))
        if axis_size(tap) != 1 != axis_size(row) and pixels_of(step or 0, apart or 0) is None:
            return False
    weight = prod(axis_size(a) for a in (matmul.axes[1], *matmul.raxes))
    small = isinstance(weight, int) and weight <= SMALL_WEIGHT
    return axis_size(channels) != 1 and (small or packed_width(matmul, isa) > 0)


def _inside(matmul: Reduction, hints: Mapping[str, int]) -> float:
    """Which part of the taps of a dilated window lie in the image, if as much is added on either side of it;
    1.0 for a window that is not dilated or a line. A library leaves out the others, tiles of pixels do not.
    """
    image, taps = matmul.values[0], matmul.raxes[1:]
    bordered = image.op == "load" and bool(image.args)
    if not bordered or len(taps) != _PLANE or any(axis_size(a) == 1 for a in taps):
        return 1.0
    part, dilated = 1.0, False
    for row, tap in zip(matmul.axes[len(matmul.axes) - len(taps) :], taps, strict=True):
        pitch, step = (coefficient(image.index, axis_name(a)) for a in (row, tap))
        count = axis_size(tap)
        if not (isinstance(pitch, int) and isinstance(step, int) and isinstance(count, int)) or pitch < 1:
            return 1.0
        extent, reach = evaluate(axis_size(row), hints), step / pitch
        dilated |= reach > 1
        there = (max(0.0, extent - abs(k - (count - 1) / 2) * reach) for k in range(count))
        part *= sum(there) / (extent * count)
    return part if dilated else 1.0


def prepacks(matmul: Reduction, hints: Mapping[str, int], isa: Isa, threads: int = 1) -> bool:
    """Whether packing the weight of a convolution at each call takes longer than comparing it; of a window of
    1x1, longer than reading it packed. Of a linear layer, whether it has to be packed.
    """
    if len(matmul.axes) == 2 and len(matmul.raxes) == 1:
        if _beats_packing_again(matmul, isa):
            return not _reads_as_stored(matmul, hints)
        tiled = fills_matrix_registers(matmul, isa)
        shared = threads >= _MANY_THREADS and _packs_vectors(matmul, hints, isa)
        near = tiled and (may_turn(matmul) or shared)
        return not near and not multiplies_pairs(matmul, isa)
    pixels, grouped = _pixels(matmul, hints)
    if fills_matrix_registers(matmul, isa):
        return True
    if not grouped and all(axis_size(a) == 1 for a in matmul.raxes[1:]):
        channels = axis_size(matmul.axes[1])
        fills = isinstance(channels, int) and channels % (2 * isa.lanes) == 0
        return fills and isa.register_bytes >= 32 and pixels in _PACKED_PIXELS
    if not grouped and pixels > FEW_PIXELS and reads_stored(matmul, isa):
        return False
    weight = prod(axis_size(a) for a in matmul.raxes) * axis_size(matmul.axes[1])
    return grouped or pixels > FEW_PIXELS or not isinstance(weight, int) or weight > _SMALL_WEIGHT


def _pixels(matmul: Reduction, hints: Mapping[str, int]) -> tuple[int, bool]:
    """Pixels of the result of a convolution (0: nobody can guess), and whether its channels are in groups."""
    axes, taps = matmul.axes, matmul.raxes[1:]
    rows = axes[:1] + axes[len(axes) - len(taps) :]
    grouped = len(axes) > len(rows) + 1
    try:
        return prod(evaluate(axis_size(a), hints) for a in rows), grouped
    except KeyError:
        return 0, grouped


def neighbours(kernel: Kernel, config: Config, isa: Isa) -> Sequence[Config]:
    """Other tiles and depths of a matmul."""
    if not has_matmul(kernel):
        return ()
    return configs_of(nearby_plans(matmul_of(kernel), isa, plan_of(config)))


def may_group(kernel: Kernel) -> Claim:
    """All but matmuls, which are timed one by one."""
    return No("a matmul is a kernel of its own") if has_matmul(kernel) else Yes()


def estimate(kernel: Kernel, config: Config, isa: Isa) -> float:
    """Seconds, roughly: by tiles and layouts for a matmul, by the reach of the lanes for other loops."""
    if has_matmul(kernel):
        return plan_seconds(matmul_of(kernel), isa, plan_of(config))
    return loop_seconds(*planned(kernel, isa.lanes, config.get("lane"), config.get("unroll")))


def text(kernel: Kernel, config: Config | None, isa: Isa) -> KernelText:
    """The text of a kernel, with its signature and the headers that it needs."""
    if kernel.parts:
        return grouped_text(kernel, {part: text(part, None, isa) for part in distinct_parts(kernel)})
    named = plainly_named(kernel)
    if has_matmul(named):
        matmul = matmul_of(named)
        plan = plan_of(config) if config else matmul_plans(matmul, isa)[0]
        return matmul_text(matmul, plan, isa)
    chosen = config or Config()
    found = kernel_text(named, isa.lanes, chosen.get("lane"), chosen.get("unroll"))
    pairs = zip(kernel.aliases, named.aliases, strict=True)
    return replace(found, refused_aliases=tuple(old for old, new in pairs if new in found.refused_aliases))
