"""The fused-kernel set: single functions that a compiler should turn into one or two loops."""

from polyfuse_bench.kernels.case import HUGE, SIZES, KernelCase, runner
from polyfuse_bench.kernels.pointwise import POINTWISE
from polyfuse_bench.kernels.rowwise import ROWWISE
from polyfuse_bench.kernels.spatial import SPATIAL

KERNELS: dict[str, KernelCase] = {case.name: case for case in (*ROWWISE, *POINTWISE, *SPATIAL)}

__all__ = ["HUGE", "KERNELS", "SIZES", "KernelCase", "runner"]
