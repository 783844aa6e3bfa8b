"""What the compiler should know of a device before any code is generated: how wide it is, what stays near."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TargetInfo", "is_near", "near_divisor"]

_WORTHWHILE = 4
"""Stretches of at least `TargetInfo.chunk` elements that a loop must have room for to be divided."""
_NEAR = (0.7, 1.6)
"""How far a divisor may be from the number of stretches that is wanted."""


@dataclass(frozen=True)
class TargetInfo:
    """The shape of a device, as one backend uses it. The defaults fit a processor with few threads and large
    caches.

    Attributes:
        blocks: groups of threads that must all have work for the device to be busy. Where a reduction has
            fewer parallel points than that, and long loops, its loops are divided among parallel points: one
            kernel makes partial results, a second one combines them. 0: never.
        lanes: parallel points that are neighbours in memory which one group takes together.
        chunk: elements that a group must at least be left with for dividing a loop to pay.
        row_bytes: longest row that each parallel point can keep between two loops (`Kernel.locals`); what
            does not fit is computed again. 0: none.
        few_rows, long_row: a kernel with fewer parallel points than `few_rows` and loops longer than
            `long_row` gets no second loop that stores: on its own, such a loop can be divided among threads.
        two_pass_row: longest rows whose variance is computed in two passes; longer ones in a single pass,
            which does more arithmetic.
        hoists: whether a kernel computes what does not vary along its inner loop only once. Where not, costly
            values are stored before they are broadcast.
        launch_bytes: bytes that the device moves in the time that starting a kernel takes. Kernels that do
            the same to tensors of equal size become one up to that, as with the option `horizontal_fusion`;
            kernels that compute each element by itself do so whatever they compute, and of any size if few.
        channels_last: whether libraries for the device compute convolutions in 16 bits, and those whose
            operands torch lets them round to TF32, faster on tensors whose channels come last in memory. They
            get such tensors then, unless gradients are needed.
        sums_across_rows: whether a kernel in which groups of rows add to one row each (scattering to a place
            that depends on ``row // count``) does so without atomic operations. Sums down columns then join
            kernels that work along rows.
        adds_to_products_later: whether a library's product and an addition in the kernels that read the sum
            are faster than the library's sum of both. Where no kernel reads it, the library adds.
        scans_look_back: whether the backend itself spreads long scans of few rows that are contiguous over
            the device. They are not divided into stretches then, which are read twice.
        bandwidth: bytes that memory gives or takes in a second, roughly.
        operations: additions and multiplications of matrix products in a second, roughly. Both serve to say
            which work takes as long as a message to another process.
        network: bytes that messages to other processes move in a second, roughly, where the option
            `network_bandwidth` is not set.
        double_sums: whether eager mode accumulates numbers in single precision in double precision there.
        alignment: bytes of which every pointer is a multiple that `KernelArg.aligned` says so of. Host
            programs then copy inputs that are not. 0: nothing is promised.
    """

    blocks: int = 0
    lanes: int = 64
    chunk: int = 8192
    row_bytes: int = 256 * 1024
    few_rows: int = 8
    long_row: int = 8192
    two_pass_row: int = 16384
    hoists: bool = True
    launch_bytes: int = 0
    sums_across_rows: bool = False
    alignment: int = 0
    channels_last: bool = False
    adds_to_products_later: bool = False
    scans_look_back: bool = False
    bandwidth: float = 20e9
    operations: float = 200e9
    network: float = 1e9
    double_sums: bool = True

    def stretches(self, groups: int, elements: int) -> int:
        """Into how many stretches to divide the loops of so many groups of threads, each over so many
        elements; 0: not at all.
        """
        room = elements // self.chunk
        if not self.blocks or room < _WORTHWHILE or 2 * groups > self.blocks:
            return 0
        return min(-(-self.blocks // max(groups, 1)), room)


def is_near(extent: int, wanted: int) -> bool:
    """Whether a loop of an extent has no more points than the stretches that are wanted, or hardly more."""
    return extent <= wanted * _NEAR[1]


def near_divisor(extent: int, wanted: int) -> int:
    """The divisor of `extent` nearest to `wanted`, if one is near; else 0."""
    low, high = int(wanted * _NEAR[0]), int(wanted * _NEAR[1])
    near = [d for d in range(max(low, 2), min(high, extent) + 1) if extent % d == 0]
    return min(near, key=lambda d: abs(d - wanted), default=0)
