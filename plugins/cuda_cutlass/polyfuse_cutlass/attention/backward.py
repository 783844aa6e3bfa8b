"""The backward kernel of flexible attention as CUDA C++: five matmuls for each tile of scores.

Gradients of keys and values stay in registers. Those of queries come from many blocks, which add them up in
f32, each thread what it holds: `Totals` says where an element is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.flex.call import Written
from polyfuse.flex.problem import Array, Blocks, Problem
from polyfuse.symbolic import IndexLike, floordiv, is_equal, mod, python_text
from polyfuse_cutlass.attention.scores import function_text, mask_text, reads_score
from polyfuse_cutlass.attention.text import AttentionText, check_copied, check_pairs, multiplication
from polyfuse_cutlass.attention.tiles import BackwardTiles
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.codegen.text import device_text

_SHARES = 64
"""Queries and numbers of a group's part of the gradients of queries."""
_THREADS, _HELD, _COLUMNS = 128, 4, 8
"""Threads of a group; numbers that a thread adds at once, of two rows; columns that four threads share."""


@dataclass(frozen=True)
class Totals:
    """The gradients of queries while blocks add to them, in f32: for each batch and head one tile after
    another, and in a tile eight columns after another, of both groups.
    """

    problem: Problem
    tiles: BackwardTiles

    @property
    def size(self) -> tuple[IndexLike, ...]:
        """Of the array: batches, heads, and numbers of each."""
        return (self.problem.batch, self.problem.heads, self.rows * self.tiles.depth)

    @property
    def rows(self) -> IndexLike:
        """Queries of whole tiles."""
        return floordiv(self.problem.queries + self.tiles.rows - 1, self.tiles.rows) * self.tiles.rows

    def offset(self, m: IndexLike, d: IndexLike) -> IndexLike:
        """The offset of number `d` of query `m`, in elements from the first of its head."""
        row = mod(m, _SHARES)
        if self.tiles.rows == _SHARES:
            group, columns = floordiv(d, _SHARES), floordiv(mod(d, _SHARES), _COLUMNS)
        else:
            group, columns = mod(floordiv(m, _SHARES), 2), floordiv(d, _COLUMNS)
        pair, half = floordiv(mod(d, _COLUMNS), 2), floordiv(mod(row, 16), 8)
        thread = floordiv(row, 16) * 32 + mod(row, 8) * 4 + pair
        inside = (
            columns * (2 * _THREADS * _HELD)
            + group * (_THREADS * _HELD)
            + thread * _HELD
            + half * 2
            + mod(d, 2)
        )
        return floordiv(m, self.tiles.rows) * (self.tiles.rows * self.tiles.depth) + inside


def backward_source(
    problem: Problem,
    tiles: BackwardTiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    totals: Array,
    results: Sequence[Array],
) -> Written:
    """Gradients: `operands` are queries, keys, values, the output's gradient, logarithms of sums, and what
    each query's gradients have in common; `lists` are of queries for each block of keys. The kernel adds to
    `totals` (see `Totals`), and writes `results`, the gradients of keys and of values.

    Raises `UnsupportedError` for what the copy engine cannot fetch, or functions that CUDA does not have.
    """
    q, k, v, g, sums, common = operands
    check_copied((q, k, v, g))
    check_pairs(results)
    assert problem.gradient is not None
    if problem.added:
        raise UnsupportedError("gradients of tensors that the score's function reads are not added up here")
    if problem.values % 2:
        raise UnsupportedError("values of an odd length are not stored in pairs")
    text = AttentionText(problem, (*operands, totals, *results), (totals, *results), lists)
    depth = tiles.depth
    parts = [
        *text.constants(
            tiles,
            {"KEY_LENGTH": problem.depth, "VALUE_LENGTH": problem.values},
            {"SCORES_LAST": reads_score(problem)},
            problem.is_plain,
        ),
        device_text("attention_coord.cuh"),
        *text.args(),
        *_coordinates(text, operands, totals),
        *text.steps(problem.key_block, problem.query_block, tiles.rows, "ROWS", "query_count"),
        function_text(problem, "changed", problem.score, text.names, text.sizes),
        function_text(problem, "changed_back", problem.gradient, text.names, text.sizes, gradient=True),
        mask_text(problem, text.names, text.sizes),
        *_elements(text, sums, common, results),
        multiplication("multiply_scores", tiles.rows, problem, (False, False)),
        multiplication("multiply_sums", depth, problem, (False, True), registers=True),
        multiplication("multiply_shares", _SHARES, problem, (True, True)),
        device_text("attention_parts.cuh"),
        device_text("attention_backward.cuh"),
    ]
    return text.written("flex_attention_backward", parts, _meta(text, tiles, operands))


def _coordinates(text: AttentionText, operands: Sequence[Array], totals: Array) -> list[str]:
    """Functions that give the coordinates of a block, and those of the queries that share its keys."""
    p = text.problem
    q, k, v, g = operands[:4]
    heads, batches = (
        "1" if is_equal(total, few) else f"({text.number(total)} / {text.number(few)})"
        for total, few in ((p.heads, p.key_heads), (p.batch, p.key_batch))
    )
    return [
        "// The longest lists are usually those of the first keys.",
        "PF_INLINE Coord block_coord(const Args& args) {",
        f"  const int heads = {text.number(p.key_heads)}, batches = {text.number(p.key_batch)};",
        "  const Turn turn(block_here(), (key_count(args) + KEYS - 1) / KEYS, batches * heads);",
        "  return {turn.head / heads, turn.head % heads, turn.tile * KEYS};",
        "}",
        f"PF_INLINE int sharers(const Args& args) {{ return {heads} * {batches}; }}",
        "PF_INLINE Coord sharer(const Args& args, const Coord& own, int i) {",
        f"  const int heads = {heads};",
        f"  return {{own.batch * {batches} + i / heads, own.head * heads + i % heads, own.row}};",
        "}",
        "// Heads and batches, as coordinates of tensor maps.",
        "PF_INLINE void key_coords(const Args& args, const Coord& own, int (&k)[2], int (&v)[2]) {",
        *text.counted("k", k, "own.batch", "own.head"),
        *text.counted("v", v, "own.batch", "own.head"),
        "}",
        "PF_INLINE void query_coords(const Args& args, const Coord& at, int (&q)[2], int (&g)[2]) {",
        *text.counted("q", q, "at.batch", "at.head"),
        *text.counted("g", g, "at.batch", "at.head"),
        "}",
        "PF_INLINE f32* totals(const Args& args, const Coord& at) {",
        f"  return &args.{text.element(totals, 'at.batch', 'at.head', '0')};",
        "}",
    ]


def _elements(text: AttentionText, sums: Array, common: Array, results: Sequence[Array]) -> list[str]:
    row, key = ("at.batch", "at.head", "m"), ("own.batch", "own.head", "n", "c")
    to_keys, to_values = results
    return [
        *(
            f"PF_INLINE f32 {name}(const Args& args, const Coord& at, int m) "
            f"{{ return args.{text.element(array, *row)}; }}"
            for name, array in (("row_sum", sums), ("row_common", common))
        ),
        *(
            f"PF_INLINE void {name}(const Args& args, const Coord& own, int n, int c, u32 pair) "
            f"{{ *(u32*)&args.{text.element(array, *key)} = pair; }}"
            for name, array in (("store_key", to_keys), ("store_value", to_values))
        ),
    ]


def _meta(text: AttentionText, tiles: BackwardTiles, operands: Sequence[Array]) -> KernelMeta:
    p = text.problem
    q, k, v, g = operands[:4]
    maps = (
        text.query_map(q, p.depth, tiles.rows),
        text.key_map(k, p.depth, tiles.keys),
        text.key_map(v, p.values, tiles.keys),
        text.query_map(g, p.values, tiles.rows),
    )
    blocks = f"-(-({python_text(p.keys)}) // {tiles.keys})"
    return text.meta(tiles, maps, f"{blocks} * ({python_text(p.key_batch)}) * ({python_text(p.key_heads)})")
