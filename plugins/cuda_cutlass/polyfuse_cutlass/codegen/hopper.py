"""The Hopper kernel of a problem as text: constants, the MMA instructions, and the fixed text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, bounds, product, python_text
from polyfuse_cutlass.build.meta import KernelMeta, MetaArg, TensorMap
from polyfuse_cutlass.codegen.epilogue import Vector, epilogue_text, heavy, is_group_store, sizes, vector_of
from polyfuse_cutlass.codegen.rounded import PAIR, ROWS_AT_ONCE, rounded_text, stored
from polyfuse_cutlass.codegen.row_statistics import reduction_fault, reduction_text
from polyfuse_cutlass.codegen.text import LANGUAGE, args_text, constants, device_text, index_text
from polyfuse_cutlass.problem import COPY_ALIGNMENT, MOST_BATCHES, Matrix, Problem, extent
from polyfuse_cutlass.tiling import Tiling

_HEADERS = ("types.cuh", "math.cuh", "hopper.cuh")
MAP_TYPES: Mapping[DType, int] = MappingProxyType(
    {
        DType.bf16: 9,
        DType.f16: 6,
        DType.f32: 11,
        DType.i8: 0,
        DType.u8: 0,
        DType.f8e4m3: 0,
        DType.f8e5m2: 0,
    }
)
MMA_TYPES: Mapping[DType, str] = MappingProxyType(
    {
        DType.bf16: "bf16",
        DType.f16: "f16",
        DType.f32: "tf32",
        DType.i8: "s8",
        DType.u8: "u8",
        DType.f8e4m3: "e4m3",
        DType.f8e5m2: "e5m2",
    }
)
_ALL = 32
"""At least as many copies of an epilogue's text as its loop has rounds."""
_REFUSED = "another backend, or the library, computes it"


def check(problem: Problem) -> None:
    """Raise `UnsupportedError` where the hardware cannot take the operands as they lie."""
    for matrix in (problem.left, problem.right):
        dtype = matrix.dtype
        if dtype not in MMA_TYPES or (dtype is DType.f32 and problem.kind != "dot_tf32"):
            raise UnsupportedError(f"the multipliers take no {dtype} operands", _REFUSED)
        if matrix.along and (matrix.row not in (0, 1) or dtype.itemsize != 2):
            raise UnsupportedError(f"an operand of {dtype} does not run along the depth", _REFUSED)
        step = COPY_ALIGNMENT // dtype.itemsize
        if not matrix.arg.aligned or not is_multiple(matrix.offset, step):
            raise UnsupportedError("an operand's address may not be a multiple of 16 bytes", _REFUSED)
        others = (matrix.depth if matrix.along else matrix.row, *matrix.batch)
        if not all(is_multiple(stride, step) for stride in others):
            raise UnsupportedError("an operand's rows may not begin at multiples of 16 bytes", _REFUSED)
        if len(matrix.batches) > MOST_BATCHES:
            raise UnsupportedError("an operand has too many batch axes", _REFUSED)
        if any((bounds(stride)[0] or 0) < 0 for stride in others):
            raise UnsupportedError("an operand is walked backwards", _REFUSED)


def hopper_source(problem: Problem, tiling: Tiling) -> Source:
    """The kernel of `problem` cut by `tiling`.

    Raises:
        UnsupportedError: the tiling does not fit the problem.
    """
    if tiling.swap:
        problem = problem.swapped
    check(problem)
    fault = fault_of(problem, tiling)
    if fault:
        raise UnsupportedError(fault, "choose another tiling")
    result = result_of(problem, tiling)
    vector = PAIR if result else vector_of(problem)
    text = "\n".join(
        [
            *(device_text(name) for name in _HEADERS),
            f"namespace in_{Source.SYMBOL} {{",
            *_constants(problem, tiling, vector, result),
            args_text(problem),
            _extents(problem, result),
            _mma(problem, tiling.columns // tiling.accumulator_splits(problem)),
            *reduction_text(problem),
            rounded_text(problem) if result else epilogue_text(problem, vector),
            device_text("gemm.cuh"),
            *(
                device_text(name)
                for name in _ends(tiling, result, any(map(is_group_store, problem.epilogue)))
            ),
            device_text("block.cuh"),
            "}",
            "#undef PF_CLUSTER",
            "#undef PF_RESULT_MAP",
            "#undef PF_RESULT_ADDRESS",
            "#undef PF_REDUCE",
            "#undef PF_ACC_OPERAND",
            "#undef PF_ACC_IN",
            "#undef PF_ACC_OUT",
            "",
        ]
    )
    return Source(problem.kernel.name, text, LANGUAGE, meta=_meta(problem, tiling, result).text())


def fault_of(problem: Problem, tiling: Tiling) -> str:
    """What is impossible about a tiling of a problem, or an empty text."""
    fault = tiling.fault(problem)
    if fault or not any(map(is_group_store, problem.epilogue)):
        return fault
    return reduction_fault(problem, tiling, PAIR if result_of(problem, tiling) else vector_of(problem))


def result_of(problem: Problem, tiling: Tiling) -> Matrix | None:
    """Where results lie that are rounded before they leave a thread, or None where they leave as sums.

    Much arithmetic that another group's MMAs hide is better done in a loop, which rounding is not.
    """
    return stored(problem) if tiling.may_round and not (tiling.pingpong and heavy(problem)) else None


def _ends(tiling: Tiling, result: Matrix | None, reduces: bool) -> tuple[str, ...]:
    """The headers that say what becomes of sums."""
    if tiling.split > 1:
        return ("split_k.cuh",)
    if result:
        return (
            *(("epilogue_reductions.cuh", "rounded_reductions.cuh") if reduces else ()),
            "rounded.cuh",
            "tiles.cuh",
        )
    return (
        "transposed.cuh",
        *(("epilogue_reductions.cuh", "transposed_reductions.cuh") if reduces else ()),
        "tiles.cuh",
    )


def _constants(problem: Problem, tiling: Tiling, vector: Vector, result: Matrix | None) -> list[str]:
    numbers = {
        "BLOCKS": tiling.blocks,
        "BY": tiling.columns,
        "TAKEN": tiling.taken,
        "ACCUMULATOR_SPLITS": tiling.accumulator_splits(problem),
        "INTERVAL": tiling.interval(problem),
        "CONSUMERS": tiling.consumers,
        "STAGES": tiling.stages,
        "CX": tiling.across,
        "CY": tiling.down,
        "SPLIT": tiling.split,
        "RASTER": tiling.raster,
        "BUFFERS": tiling.buffers,
        "STAGING": tiling.staging_bytes,
        "CHUNK": tiling.chunk,
        "VEC": vector.count,
        "BYTES": problem.left.dtype.itemsize,
        "X_BATCHES": max(1, len(problem.left.batches)),
        "Y_BATCHES": max(1, len(problem.right.batches)),
        "RESULT_BATCHES": max(1, len(result.batches)) if result else 1,
        "UNROLL": _unrolled(problem),
        "RESIDENT": tiling.resident,
    }
    truths = {
        "PINGPONG": tiling.pingpong,
        "X_ALONG": problem.left.along,
        "Y_ALONG": problem.right.along,
        "VEC_X": vector.along_rows,
        "PROMOTES": problem.promotes,
        "MAY_BE_EMPTY": tiling.split > 1 or (bounds(extent(problem.depth))[0] or 0) < 1,
    }
    letter = "r" if problem.dtype.is_integer else "f"
    cluster = f"__cluster_dims__({tiling.cluster}, 1, 1)" if tiling.cluster > 1 else ""
    return [
        *constants(numbers, truths, {"Acc": problem.dtype.value}),
        f'#define PF_ACC_OPERAND(a) "+{letter}"(a)',
        f'#define PF_ACC_IN(a) "{letter}"(a)',
        f'#define PF_ACC_OUT(a) "={letter}"(a)',
        f"#define PF_CLUSTER {cluster}".rstrip(),
        f"#define PF_RESULT_MAP{' const __grid_constant__ TensorMap map_result,' if result else ''}",
        f"#define PF_RESULT_ADDRESS {'&map_result' if result else '0'}",
        f"#define PF_REDUCE(...){' __VA_ARGS__' if any(map(is_group_store, problem.epilogue)) else ''}",
    ]


def _unrolled(problem: Problem) -> int:
    """Copies of an epilogue's text: one for each value that is combined with others."""
    if any(map(is_group_store, problem.epilogue)):
        return _ALL
    return 1 if heavy(problem) else 4


def _extents(problem: Problem, result: Matrix | None) -> str:
    names = sizes(problem)
    lines = [
        f"PF_INLINE int {name}(const Args& args) {{ return (int)({index_text(value, names)}); }}"
        for name, value in (
            ("extent_x", extent(problem.rows)),
            ("extent_y", extent(problem.columns)),
            ("depth", extent(problem.depth)),
            ("batches", product(extent(a) for a in problem.batch)),
        )
    ]
    lines += [
        "// Where an operand's matrices of a batch are, along each batch axis that it has.",
        "PF_INLINE void operand_batches(const Args& args, int batch, int (&bx)[X_BATCHES], "
        "int (&by)[Y_BATCHES]) {",
        *_batches(problem, {"bx": problem.left, "by": problem.right}),
        "}",
    ]
    if result:
        lines += [
            "PF_INLINE void result_batches(const Args& args, int batch, int (&of)[RESULT_BATCHES]) {",
            *_batches(problem, {"of": result}),
            "}",
        ]
    return "\n".join(lines)


def _batches(problem: Problem, matrices: Mapping[str, Matrix]) -> list[str]:
    """Takes the number of a batch apart, into the indices of matrices along their batch axes."""
    names = sizes(problem)
    lines = [f"  {' = '.join(f'{name}[0]' for name in matrices)} = 0;"]
    for number in reversed(range(len(problem.batch))):
        size = f"(int)({index_text(extent(problem.batch[number]), names)})"
        for name, matrix in matrices.items():
            if number in matrix.batches:
                position = tuple(reversed(matrix.batches)).index(number)
                lines.append(f"  {name}[{position}] = batch % {size};")
        lines.append(f"  batch /= {size};")
    return lines


def _mma(problem: Problem, columns: int) -> str:
    """The function `mma`: one instruction on a tile of 64 rows."""
    count = columns // 2
    left, right = (MMA_TYPES[m.dtype] for m in (problem.left, problem.right))
    result = "s32" if problem.dtype.is_integer else "f32"
    depth = 32 // problem.left.dtype.itemsize
    rest = f"%{count}, %{count + 1}, more"
    if not problem.dtype.is_integer:
        rest += ", 1, 1"
    if problem.left.dtype.itemsize == 2:
        rest += f", {int(problem.left.along)}, {int(problem.right.along)}"
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f"PF_ACC_OPERAND(d[{i}])" for i in range(count))
    shape = f"m64n{columns}k{depth}.{result}.{left}.{right}"
    return f"""// d += a * b, or d = a * b where not `more`
PF_INLINE void mma(Acc (&d)[{count}], u64 a, u64 b, int more) {{
  asm volatile("{{\\n.reg .pred more;\\nsetp.ne.b32 more, %{count + 2}, 0;\\n"
               "wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {rest};\\n}}"
               : {operands} : "l"(a), "l"(b), "r"(more));
}}"""


def _map(problem: Problem, matrix: Matrix, rows: IndexLike, box: int, depth: IndexLike) -> TensorMap:
    size = matrix.dtype.itemsize
    number = [arg.name for arg in problem.kernel.args].index(matrix.arg.name)
    batches = tuple(reversed(matrix.batches))
    inner, outer, stride = (rows, depth, matrix.depth) if matrix.along else (depth, rows, matrix.row)
    extents: list[IndexLike] = [inner, outer, *(extent(problem.batch[i]) for i in batches)]
    strides: list[IndexLike] = [stride, *(matrix.batch[i] for i in batches)]
    boxes = [128 // size, 128 // size if matrix.along else box, *(1 for _ in batches)]
    if not batches:
        extents.append(1)
        strides.append(COPY_ALIGNMENT // size)
        boxes.append(1)
    return TensorMap(
        number,
        python_text(matrix.offset * size),
        MAP_TYPES[matrix.dtype],
        tuple(python_text(n) for n in extents),
        tuple(python_text(n * size) if n != 0 else str(COPY_ALIGNMENT) for n in strides),
        tuple(boxes),
    )


def _meta(problem: Problem, tiling: Tiling, result: Matrix | None) -> KernelMeta:
    rows, columns, depth = (extent(a) for a in (problem.rows, problem.columns, problem.depth))
    maps = [
        _map(problem, problem.left, rows, tiling.taken // tiling.down, depth),
        _map(problem, problem.right, columns, tiling.columns // tiling.across, depth),
    ]
    if result:
        maps.append(_map(problem, result, rows, ROWS_AT_ONCE, columns))
    over = tiling.taken * tiling.across, tiling.columns * tiling.down
    tiles = [f"-(-({python_text(n)}) // {step})" for n, step in zip((rows, columns), over, strict=True)]
    batch = python_text(product(extent(a) for a in problem.batch))
    return KernelMeta(
        args=tuple(MetaArg(arg.name, arg.kind != "size") for arg in problem.kernel.args),
        maps=tuple(maps),
        tiles=f"{tiles[0]} * {tiles[1]} * ({batch})",
        cluster=tiling.cluster,
        read_only=tiling.split == 1,
        resident=tiling.resident,
        threads=tiling.threads,
        shared=tiling.shared_bytes,
        fuse=problem.kernel.numerics != "eager",
        dependent_launch=True,
    )
