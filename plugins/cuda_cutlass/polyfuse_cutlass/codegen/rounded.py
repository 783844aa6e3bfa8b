"""The epilogue where results of 16 bits are rounded as the multiplier left them, for the copy engine.

A thread then holds pairs of neighbours, of many columns and few rows. So what varies with the row and what
varies with the column are loaded separately, and nothing that is loaded may vary with both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polyfuse.ir.statements import Load, Store
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple
from polyfuse.symbolic import axis_name, bounds, free_axes
from polyfuse_cutlass.codegen.epilogue import (
    EpilogueWriter,
    Prefetch,
    Vector,
    axis_values,
    is_group_store,
    reduced_parameter,
)
from polyfuse_cutlass.codegen.ops import cast_text
from polyfuse_cutlass.problem import COPY_ALIGNMENT, MOST_BATCHES, Matrix, Problem, extent, strided

PAIR = Vector(along_rows=False, count=2)
"""What the multiplier leaves side by side in a thread."""
ROWS_AT_ONCE = 16
"""Rows of a warp, which it stores at once."""


def stored(problem: Problem) -> Matrix | None:
    """Where the copy engine stores the results; None where they must leave as sums."""
    stores = [s for s in problem.epilogue if isinstance(s, Store) and not is_group_store(s)]
    if len(stores) != 1 or problem.columns is None:
        return None
    store = stores[0]
    arg = next(a for a in problem.kernel.args if a.name == store.buffer)
    if len(store.args) > 1 or store.mode != "set":
        return None
    if not arg.aligned or arg.dtype not in (DType.bf16, DType.f16):
        return None
    found = strided(arg, store.index, problem.rows, problem.columns, problem.batch)
    if found is None or found.along or not is_multiple(extent(problem.columns), PAIR.count):
        return None
    steps, axes = (found.row, *found.batch), (problem.rows, *problem.batch)
    forward = all(
        (bounds(step)[0] or 0) > 0 for step, one in zip(steps, axes, strict=True) if one is not None
    )
    lined_up = all(is_multiple(n, COPY_ALIGNMENT // arg.dtype.itemsize) for n in (found.offset, *steps))
    if not forward or not lined_up or len(found.batches) > MOST_BATCHES:
        return None
    return found if _Rounded(problem, PAIR).takes() else None


def rounded_text(problem: Problem) -> str:
    """The function `finish`, which computes two neighbours before they are rounded, and `fetch_row` and
    `fetch_columns` for what it needs besides the sums.
    """
    reduced = reduced_parameter(problem)
    writer = _Rounded(problem, PAIR)
    for stmt in problem.epilogue:
        writer.statement(stmt)
    return "\n".join(
        [
            f"typedef {writer.result.value} Result;",
            f"constexpr int FETCHED = {writer.prefetched.bytes};  // bytes",
            f"constexpr int FETCHED_OF_ROW = {writer.rows.bytes};",
            *writer.rows.text(problem, "OfRow", "fetch_row", "x"),
            *writer.prefetched.text(problem, "OfColumns", "fetch_columns", "y"),
            "PF_INLINE void finish(const Args& args, int batch, int x, int y, const Acc (&sum)[VEC], "
            f"const OfRow& of_row, const OfColumns& of_columns, f32 (&to)[VEC]{reduced}) {{",
            *(f"  {line}" for line in (*axis_values(problem), *writer.lines)),
            "}",
        ]
    )


@dataclass
class _Rounded(EpilogueWriter):
    """Statements of an epilogue whose results are rounded later.

    Attributes:
        rows: what is loaded ahead for each row; `prefetched` is that for each pair of columns.
        result: the type to which results are rounded.
    """

    prefetched: Prefetch = field(default_factory=lambda: Prefetch("of_columns"))
    rows: Prefetch = field(default_factory=lambda: Prefetch("of_row"))
    result: DType = DType.bf16

    def takes(self) -> bool:
        """Whether nothing that is loaded varies with row and column."""
        row = "" if self.problem.rows is None else axis_name(self.problem.rows)
        for stmt in self.problem.epilogue:
            if not isinstance(stmt, Load):
                continue
            axes = free_axes(stmt.index)
            if stmt.args or self.args[stmt.buffer].kind != "in":
                return False
            if self.along in axes and (row in axes or not self.packed(stmt)):
                return False
        return True

    def prefetch_for(self, varies: bool) -> Prefetch:
        """Apart for rows and for columns."""
        return self.prefetched if varies else self.rows

    def store(self, stmt: Store) -> None:
        """The value before it is rounded to what is stored, as the interpreter would round it."""
        name = stmt.value
        self.result = self.args[stmt.buffer].dtype
        made = next((s for s in self.problem.epilogue if name in s.targets and s.op == "cast"), None)
        if made is not None and (self.types[name], self.types[made.args[0]]) == (self.result, DType.f32):
            name = made.args[0]
        text = cast_text(self.value(name), self.types[name], DType.f32)
        self.lines += ["#pragma unroll", f"for (int j = 0; j < VEC; ++j) to[j] = {text};"]
