"""A GEMM by CUTLASS's templates for Ampere, as text: types, the tile, the epilogue, fixed text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple
from polyfuse.plugin import Config, Source
from polyfuse.symbolic import bounds
from polyfuse_cutlass.codegen.epilogue import Vector, epilogue_text, vector_of
from polyfuse_cutlass.codegen.hopper import check
from polyfuse_cutlass.problem import COPY_ALIGNMENT, Problem, extent
from polyfuse_cutlass.templates.meta import meta_of
from polyfuse_cutlass.templates.text import LANGUAGE, args_text, constants, device_text, library_text

_TYPES: Mapping[DType, tuple[str, int]] = MappingProxyType(
    {
        DType.bf16: ("cutlass::bfloat16_t", 16),
        DType.f16: ("cutlass::half_t", 16),
        DType.f32: ("float", 8),
        DType.i8: ("int8_t", 32),
        DType.u8: ("uint8_t", 32),
    }
)
"""Operands: CUTLASS's name, and the depth of one instruction."""
_DEPTHS: Mapping[DType, int] = MappingProxyType({DType.i8: 131071, DType.u8: 33025})
"""Up to which depth no sum leaves 32 bits: there CUTLASS's instructions saturate, and torch wraps."""
_HEADERS = (
    "cutlass/cutlass.h",
    "cute/tensor.hpp",
    "cutlass/gemm/kernel/default_gemm_universal_with_visitor.h",
    "cutlass/epilogue/threadblock/fusion/visitors.hpp",
    "cutlass/gemm/device/gemm_universal_base.h",
)
_OTHERS = "another backend, or the library, computes it"


@dataclass(frozen=True)
class AmpereTile:
    """One way to cut a problem.

    Attributes:
        rows, columns: of a tile.
        across, down: warps that share a tile, along rows and along columns.
        bytes: of a row of an operand in a stage.
        stages: of the ring.
    """

    rows: int = 128
    columns: int = 128
    across: int = 2
    down: int = 2
    bytes: int = 64
    stages: int = 4

    @property
    def config(self) -> Config:
        """As the core passes it round."""
        return Config.of(
            ampere=1,
            rows=self.rows,
            columns=self.columns,
            across=self.across,
            down=self.down,
            bytes=self.bytes,
            stages=self.stages,
        )

    @staticmethod
    def of(config: Config) -> AmpereTile:
        """What `config` wrote."""
        return AmpereTile(**{name: value for name, value in config.values if name != "ampere"})


def oriented(problem: Problem) -> Problem:
    """`problem`, with rows and columns exchanged where the first store's neighbours lie along the rows."""
    return problem.swapped if vector_of(problem).along_rows else problem


def _check(problem: Problem) -> None:
    check(problem)
    if problem.left.dtype is not problem.right.dtype or problem.left.dtype not in _TYPES:
        raise UnsupportedError(
            f"Ampere does not multiply {problem.left.dtype} with {problem.right.dtype}", _OTHERS
        )
    depth = bounds(extent(problem.depth))[1]
    if problem.dtype.is_integer and (depth is None or depth > _DEPTHS[problem.left.dtype]):
        raise UnsupportedError("sums of so many integers may not fit", _OTHERS)
    if len(problem.batch) > 1:
        raise UnsupportedError("CUTLASS takes one batch axis", _OTHERS)
    for matrix, rows in ((problem.left, problem.rows), (problem.right, problem.columns)):
        # it reads 16 bytes at a time, and does not look for an end within them
        size = extent(rows if matrix.along else problem.depth)
        if not is_multiple(size, COPY_ALIGNMENT // matrix.dtype.itemsize):
            raise UnsupportedError("an operand's rows may not end at multiples of 16 bytes", _OTHERS)


def ampere_source(problem: Problem, tile: AmpereTile, version: str) -> Source:
    """The kernel of `problem` cut by `tile`, for CUTLASS of a version."""
    problem = oriented(problem)
    _check(problem)
    vector = vector_of(problem)
    if problem.dtype.is_integer:
        vector = replace(vector, count=min(vector.count, 4))
    if vector.along_rows:
        vector = Vector(False, 1)
    size = problem.left.dtype.itemsize
    name, depth = _TYPES[problem.left.dtype]
    access = max(vector.count, 4)
    numbers = {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.bytes // size,
        "WARP_ROWS": tile.rows // tile.across,
        "WARP_COLUMNS": tile.columns // tile.down,
        "STAGES": tile.stages,
        "ACCESS": access,
        "VEC": vector.count,
    }
    truths = {"LEFT_ALONG": problem.left.along, "RIGHT_ALONG": problem.right.along}
    types = {
        "Acc": problem.dtype.value,
        "Left": name,
        "Right": name,
        "LeftLayout": f"cutlass::layout::{'ColumnMajor' if problem.left.along else 'RowMajor'}",
        "RightLayout": f"cutlass::layout::{'RowMajor' if problem.right.along else 'ColumnMajor'}",
        # only its size matters: results are shown to the visitor as they were added up
        "Result": "cutlass::half_t" if access == 8 else "Acc",
        "Operation": f"cutlass::arch::OpMultiplyAdd{'Saturate' if problem.dtype.is_integer else ''}",
        "Instruction": f"cutlass::gemm::GemmShape<16, 8, {depth}>",
    }
    body = [
        *constants(numbers, truths, types),
        args_text(problem),
        epilogue_text(problem, vector),
        device_text("ampere.cuh"),
    ]
    text = library_text(version, _HEADERS, body)
    return Source(problem.kernel.name, text, LANGUAGE, meta=meta_of(problem, ("80+",)).text())
