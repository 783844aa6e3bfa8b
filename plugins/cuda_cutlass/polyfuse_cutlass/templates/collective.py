"""A GEMM by CUTLASS's collectives for Hopper, as text: types, the tile, the epilogue, fixed text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.types import DType
from polyfuse.plugin import Config, Source
from polyfuse_cutlass.codegen.epilogue import epilogue_text, heavy, vector_of
from polyfuse_cutlass.codegen.hopper import check
from polyfuse_cutlass.problem import Problem
from polyfuse_cutlass.templates.meta import meta_of
from polyfuse_cutlass.templates.stream_k import scratch_bytes
from polyfuse_cutlass.templates.text import LANGUAGE, args_text, constants, device_text, library_text

SCHEDULES = ("cooperative", "ping-pong", "stream-K")
_MAINLOOPS: Mapping[str, str] = MappingProxyType(
    {
        "cooperative": "KernelTmaWarpSpecializedCooperative",
        "ping-pong": "KernelTmaWarpSpecializedPingpong",
        "stream-K": "KernelTmaWarpSpecializedCooperative",
    }
)
_TYPES: Mapping[DType, str] = MappingProxyType(
    {
        DType.bf16: "cutlass::bfloat16_t",
        DType.f16: "cutlass::half_t",
        DType.f32: "cutlass::tfloat32_t",
        DType.i8: "int8_t",
        DType.u8: "uint8_t",
        DType.f8e4m3: "cutlass::float_e4m3_t",
        DType.f8e5m2: "cutlass::float_e5m2_t",
    }
)
_HEADERS = (
    "cutlass/cutlass.h",
    "cute/tensor.hpp",
    "cutlass/gemm/collective/collective_builder.hpp",
    "cutlass/epilogue/collective/default_epilogue.hpp",
    "cutlass/epilogue/collective/detail.hpp",
    "cutlass/gemm/device/gemm_universal_adapter.h",
    "cutlass/gemm/kernel/gemm_universal.hpp",
    "cutlass/gemm/kernel/tile_scheduler.hpp",
)


@dataclass(frozen=True)
class Collective:
    """One way to cut a problem.

    Attributes:
        rows, columns: of a tile.
        across: blocks of a cluster along the rows; they share the right operand.
        down: blocks of a cluster along the columns; they share the left operand.
        schedule: `cooperative`: two groups of warps share a tile; `ping-pong`: they take tiles in turn;
            `stream-K`: they share a tile, and blocks share the depth of the last tiles.
        swap: whether rows and columns are exchanged: the transposed result is computed.
    """

    rows: int = 128
    columns: int = 256
    across: int = 2
    down: int = 1
    schedule: str = "cooperative"
    swap: bool = False

    @property
    def config(self) -> Config:
        """As the core passes it round."""
        return Config.of(
            collective=1 + SCHEDULES.index(self.schedule),
            rows=self.rows,
            columns=self.columns,
            across=self.across,
            down=self.down,
            swap=int(self.swap),
        )

    @staticmethod
    def of(config: Config) -> Collective:
        """What `config` wrote."""
        get = config.get
        schedule = SCHEDULES[get("collective") - 1]
        return Collective(
            get("rows"), get("columns"), get("across"), get("down"), schedule, bool(get("swap"))
        )

    @property
    def groups(self) -> int:
        """Groups of warps that multiply a tile together."""
        return 1 if self.schedule == "ping-pong" else 2


def fault(problem: Problem, collective: Collective) -> str:
    """What is impossible about it, or an empty text. `problem` is swapped already where it should be."""
    if len(problem.batch) > 1:
        return "CUTLASS takes one batch axis"
    if problem.batch and 0 in (problem.left.batch[0], problem.right.batch[0]):
        return "CUTLASS takes no operand that a batch shares"
    if collective.rows % (64 * collective.groups):
        return f"{collective.rows} rows cannot be shared by {collective.groups} groups of warps"
    sums = collective.rows // (64 * collective.groups) * collective.columns
    if sums > (128 if problem.promotes else 256):
        return "a thread would hold too many sums"
    return ""


def _accuracy(problem: Problem) -> str:
    """How CUTLASS calls a schedule whose multipliers alone keep the sums of 8-bit floats."""
    return "FP8FastAccum" if problem.kind == "dot_fast" else ""


def collective_source(problem: Problem, collective: Collective, version: str, multiprocessors: int) -> Source:
    """The kernel of `problem` cut by `collective`, for CUTLASS of a version and so many multiprocessors.

    Raises:
        UnsupportedError: the configuration does not fit the problem.
    """
    if collective.swap:
        problem = problem.swapped
    check(problem)
    reason = fault(problem, collective)
    if reason:
        raise UnsupportedError(reason, "choose another configuration")
    vector = vector_of(problem)
    numbers = {
        "ROWS": collective.rows,
        "COLUMNS": collective.columns,
        "DEPTH": 128 // problem.left.dtype.itemsize,
        "CLUSTER_ROWS": collective.across,
        "CLUSTER_COLUMNS": collective.down,
        "WARPS": 8,
        "VEC": vector.count,
        "UNROLL": 1 if heavy(problem) else 4,
    }
    shares = collective.schedule == "stream-K"
    scheduler = "StreamKScheduler" if shares else "PersistentScheduler"
    types = {
        "Acc": problem.dtype.value,
        "Left": _TYPES[problem.left.dtype],
        "Right": _TYPES[problem.right.dtype],
        "LeftLayout": f"cutlass::layout::{'ColumnMajor' if problem.left.along else 'RowMajor'}",
        "RightLayout": f"cutlass::layout::{'RowMajor' if problem.right.along else 'ColumnMajor'}",
        "Schedule": f"cutlass::gemm::{_MAINLOOPS[collective.schedule]}{_accuracy(problem)}",
        "Scheduler": f"cutlass::gemm::{scheduler}",
    }
    body = [
        *constants(numbers, {"VEC_X": vector.along_rows}, types),
        args_text(problem),
        epilogue_text(problem, vector),
        device_text("collective.cuh"),
    ]
    text = library_text(version, _HEADERS, body)
    tile, cluster = (collective.rows, collective.columns), (collective.across, collective.down)
    scratch = scratch_bytes(problem, (*tile, numbers["DEPTH"]), cluster, multiprocessors) if shares else 0
    meta = meta_of(problem, ("90a",)).text()
    return Source(problem.kernel.name, text, LANGUAGE, meta=meta, scratch=scratch)
