"""Stores that combine groups of results: the beginning of a sum, a minimum or a maximum over rows or columns.

A warp finishes fragments of 16 rows and 32 or 64 columns. Its threads combine groups of 16 rows, or of 32
columns, and store what each group comes to beside the results.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.statements import Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike, axis, axis_name, coefficient, free_axes, substitute
from polyfuse_cutlass.codegen.epilogue import Vector, axis_values, is_group_store, names_of
from polyfuse_cutlass.codegen.ops import literal, operation_text
from polyfuse_cutlass.codegen.text import index_text
from polyfuse_cutlass.problem import Problem, extent
from polyfuse_cutlass.tiling import Tiling

ROWS, COLUMNS = 16, 32
"""Neighbouring rows, and neighbouring columns, that are combined."""
_WARP = 32
_COMBINED = {"group_sum": "add", "group_min": "minimum", "group_max": "maximum"}
_NOTHING = {"group_sum": 0.0, "group_min": float("inf"), "group_max": float("-inf")}


@dataclass(frozen=True)
class EpilogueReduction:
    """A store of what groups of results come to. `over_rows`: a group is of rows, not of columns."""

    stmt: Store
    over_rows: bool


def reductions_of(problem: Problem) -> tuple[EpilogueReduction, ...]:
    """The stores of a problem that combine results, in order, where `reduction_refusal` is empty."""
    found = (stmt for stmt in problem.epilogue if is_group_store(stmt))
    return tuple(EpilogueReduction(stmt, _is_shared(stmt.index, problem.rows, ROWS)) for stmt in found)


def reduction_refusal(problem: Problem) -> str:
    """Why results cannot be combined as an epilogue has it, or an empty text."""
    for stmt in problem.epilogue:
        if not is_group_store(stmt):
            continue
        if stmt.indirect or stmt.mask is not None or stmt.dtype is not DType.f32:
            return f"groups of results are combined as {stmt.dtype}, or where data say"
        over = _is_shared(stmt.index, problem.rows, ROWS), _is_shared(stmt.index, problem.columns, COLUMNS)
        if over.count(True) != 1:
            return f"groups of results are combined that are not of {ROWS} rows or {COLUMNS} columns"
    return ""


def reduction_fault(problem: Problem, tiling: Tiling, vector: Vector) -> str:
    """What keeps a tiling from combining groups of results as an epilogue has it, or an empty text."""
    if tiling.split > 1 or tiling.used or tiling.columns % COLUMNS:
        return f"groups of {ROWS} rows and {COLUMNS} columns do not fit its tiles"
    if vector.along_rows or tiling.chunk // vector.count > _WARP:
        return "neighbours in memory are not neighbouring columns of it"
    return reduction_refusal(problem)


def _is_shared(index: IndexLike, along: Index | None, width: int) -> bool:
    """Whether an index is the same for each `width` neighbours along an axis, and another one for others."""
    if along is None:
        return False
    if axis_name(along) not in free_axes(index):
        size = extent(along)
        return isinstance(size, int) and size <= width
    group, inside = axis("group", extent(along)), axis("inside", width)
    moved = substitute(index, {axis_name(along): width * group + inside})
    return "inside" not in free_axes(moved) and coefficient(moved, "group") not in (None, 0)


def reduction_text(problem: Problem) -> list[str]:
    """What is combined of results, how, where it is stored, and a function that does it for a fragment."""
    found = reductions_of(problem)
    if not found:
        return []
    lines = [f"struct Reduced {{ f32 of[{len(found)}][VEC]; }};"]
    for number, one in enumerate(found):
        buffer, index, mode = one.stmt.buffer, one.stmt.index, one.stmt.mode
        both = operation_text(_COMBINED[mode], DType.f32, ("a", "b"))
        lines += [
            f"struct Reduction{number} {{",
            f"  static constexpr bool OVER_ROWS = {str(one.over_rows).lower()};",
            f"  PF_INLINE f32 nothing() {{ return {literal(_NOTHING[mode], DType.f32)}; }}",
            f"  PF_INLINE f32 both(f32 a, f32 b) {{ return {both}; }}",
            "  PF_INLINE void store(const Args& args, int batch, int x, int y, f32 value) {",
            *(f"    {line}" for line in axis_values(problem)),
            f"    args.{buffer}[{index_text(index, names_of(problem))}] = value;",
            "  }",
            "};",
        ]
    return [
        *lines,
        "template <class F> PF_INLINE void reduce_all(const Args& args, int batch, const F& fragment) {",
        *(
            f"  fragment.template reduce<Reduction{number}, {number}>(args, batch);"
            for number in range(len(found))
        ),
        "}",
        "template <int N> PF_INLINE void reduce_units(const Args& args, int batch, int fragment, int x0, "
        "int y0, int end, const Reduced (&of)[N]);",
    ]
