"""What the compiler knows of a device before any code is generated: parallelism, sizes, speeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.ir.types import DType
    from polyfuse.runtime.devices.device import DeviceProperties

_MIN_SPLITS = 4
"""A loop is split only where it has room for so many parts of `TargetInfo.split_chunk` elements."""
_LAUNCH_POINTS = 8192
"""Points at which one thread of a CPU computes a slow operation in the time of a few launches."""
_NEAR = (0.7, 1.6)
"""How far a divisor may be from the number of splits that is wanted."""


@dataclass(frozen=True)
class TargetInfo:
    """What the compiler knows of a device, as one backend uses it. The defaults fit a CPU with few threads
    and large caches.

    Attributes:
        blocks: thread blocks that must all have work for the device to be busy. A reduction of fewer parallel
            points with long loops becomes a split reduction: one kernel makes partial results, a second one
            combines them. 0: never.
        lanes: parallel points, neighbours in memory, that one block computes together.
        split_chunk: elements that each part of a split reduction must have at least.
        row_bytes: size of the longest row buffer that each parallel point can keep between two loops
            (`Kernel.row_buffers`); what does not fit is computed again. 0: none.
        few_rows, long_row: a kernel with fewer parallel points than `few_rows` and loops longer than
            `long_row` gets no second loop that stores: in a kernel of its own, such a loop is divided among
            threads.
        column_bytes: size of the largest strip of columns that stays in the caches between two loops. Where
            `lanes` neighbouring columns as long as the loop are more, what is computed of each element after
            a reduction gets a kernel of its own, which runs along memory, and the moments of groups of
            columns are made of those of each column. 0: no limit.
        two_pass_row: longest rows whose variance is computed in two passes; longer ones are read once, which
            takes more arithmetic.
        licm: whether the generated code computes what does not vary along its inner loop only once
            (loop-invariant code motion). Where not, costly values are stored before they are broadcast.
        recomputed_points: how many times in all a kernel may compute a slow operation again for a value that
            is broadcast along its outer axes; beyond that, the value is stored first. 0: any number of times,
            where memory takes longer than arithmetic.
        launch_bytes: bytes that the device moves in the time that a launch takes. Horizontal fusion joins
            equal kernels of up to that, as with the option `horizontal_fusion`; kernels that compute each
            element by itself are joined whatever they compute, and of any size if few.
        channels_last: the types in which libraries for the device compute convolutions faster on tensors in
            the channels-last layout; with a type of 16 bits, also f32 where torch lets them round operands to
            TF32. They get such tensors then, unless gradients are needed.
        channels_last_gradients: those of these types of which they compute gradients faster so, too, from
            weights as they are.
        channels_last_weights: whether those libraries want their weights so, too, and compute gradients
            faster then.
        paired_types: those of which one instruction multiplies pairs of steps of the depth and adds them up.
            In packed parameters (`Backend.packed_width`), both steps of a column lie side by side.
        convolved_types: those of 16 bits whose convolutions the backend generates in less time than libraries
            take, in inference: along one axis, too, and though they are all that a graph does with images.
        depthwise_loops: whether the backend's loops over convolutions with channels last, small
            windows and one, two or four channels for each result are faster than libraries, and its sums over
            pixels faster than their gradients of such weights.
        loops_by_ranges: whether the backend cuts loops where comparisons of their positions change. A tensor
            that is made of parts, such as a margin and what it surrounds, is one expression then.
        column_reductions: whether a kernel in which groups of rows add to one row each (a scatter to an index
            that depends on ``row // count``) does so without atomic operations. Sums of columns are then
            fused with kernels that work along rows.
        repeated_row: longest row whose reductions (a normalisation) are computed again by each thread block
            of a matmul of that row and a matrix, instead of by one block before. 0: never.
        transposed_rows: fewest and most rows that are stored transposed for a GEMM whose weight is signed
            bytes that are only converted to bf16: its kernel reads the depth in an order that suits these.
        paired_gemm_rows: most rows (or columns, the fewer of both) of two GEMMs of one operand that a kernel
            computes side by side, so that its epilogue reads both sums: a gate and the projection that it
            multiplies. 0: none.
        separate_gemm_add: whether a library's GEMM and an addition in the kernels that read the sum are
            faster than the library's sum of both. Where no kernel reads it, the library adds; so it does with
            a bias for numbers of 16 bits or fewer, which its kernels add in their epilogue.
        separate_bias_rows: rows of a GEMM from which that holds for a bias of wider numbers: with fewer, the
            library may choose slower kernels for the GEMM alone.
        separate_convolution_bias: whether the library's convolutions add a bias by a pass of their own, and
            sum its gradient by another. Kernels that read a convolution's result add the bias instead, and
            the gradient's sum is fused.
        scans_look_back: whether the backend itself spreads long contiguous scans of few rows over the device
            (decoupled look-back). They are not split then, which would read them twice.
        bandwidth: bytes that memory moves in a second, roughly.
        operations: additions and multiplications of GEMMs in a second, roughly. Both serve to say which
            work takes as long as a message to another process.
        double_sums: whether eager mode accumulates numbers in single precision in double precision there.
        alignment: bytes of which every pointer is a multiple that `KernelArg.aligned` says so of. Host
            programs then copy inputs that are not. 0: nothing is promised.
        size_classes: sizes, ascending, at which the backend's choices for a kernel change. A graph with
            dynamic sizes gets a program for each range between them, when such sizes are first met; its
            symbols have the bounds of the range. Empty: one program serves all sizes.
        machine: the machine that kernels are generated for, as `platform.machine` names it, where it is
            another one than this: they are packaged, and not launched here.
        size_multiple: sizes that are multiples of this number get programs of their own, in which they are
            written as such multiples: for devices that read memory in larger units where strides allow
            it. 1: they do not.
    """

    blocks: int = 0
    lanes: int = 64
    split_chunk: int = 8192
    row_bytes: int = 256 * 1024
    few_rows: int = 8
    long_row: int = 8192
    column_bytes: int = 0
    two_pass_row: int = 16384
    licm: bool = True
    recomputed_points: int = 0
    launch_bytes: int = 0
    transposed_rows: tuple[int, int] = (0, 0)
    paired_gemm_rows: int = 0
    column_reductions: bool = False
    repeated_row: int = 0
    loops_by_ranges: bool = False
    alignment: int = 0
    channels_last: frozenset[DType] = frozenset()
    channels_last_gradients: frozenset[DType] = frozenset()
    channels_last_weights: bool = False
    paired_types: frozenset[DType] = frozenset()
    convolved_types: frozenset[DType] = frozenset()
    depthwise_loops: bool = False
    separate_gemm_add: bool = False
    separate_bias_rows: int = 0
    separate_convolution_bias: bool = False
    scans_look_back: bool = False
    bandwidth: float = 20e9
    operations: float = 200e9
    double_sums: bool = True
    size_classes: tuple[int, ...] = ()
    size_multiple: int = 1
    machine: str = ""

    @staticmethod
    def of(properties: DeviceProperties) -> TargetInfo:
        """What follows from the properties of a device; a device of many units is taken to be wide: thread
        blocks with small row buffers, and launches that cost what moving a megabyte does.
        """
        found = TargetInfo(bandwidth=properties.bandwidth, operations=properties.operations)
        if not properties.units:
            return replace(found, recomputed_points=_LAUNCH_POINTS)
        return replace(
            found,
            blocks=2 * properties.units,
            row_bytes=32 * 1024,
            few_rows=properties.units,
            launch_bytes=1 << 20,
            double_sums=False,
        )

    def splits(self, groups: int, elements: int) -> int:
        """How many parts to split the loops of so many thread blocks into, each over so many elements; 0: the
        loops stay whole.
        """
        room = elements // self.split_chunk
        if not self.blocks or room < _MIN_SPLITS or 2 * groups > self.blocks:
            return 0
        return min(-(-self.blocks // max(groups, 1)), room)


def is_near(extent: int, wanted: int) -> bool:
    """Whether a loop has at most about as many iterations as splits are wanted."""
    return extent <= wanted * _NEAR[1]


def near_divisor(extent: int, wanted: int) -> int:
    """The divisor of `extent` nearest to `wanted`, if one is near; else 0."""
    low, high = int(wanted * _NEAR[0]), int(wanted * _NEAR[1])
    near = [d for d in range(max(low, 2), min(high, extent) + 1) if extent % d == 0]
    return min(near, key=lambda d: abs(d - wanted), default=0)
