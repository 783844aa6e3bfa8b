"""The forward kernel of flexible attention as CUDA C++: constants, where its blocks are, the user's
functions, and the fixed text.

Scores are never stored. Exponentials and logarithms are of base two.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.base.errors import UnsupportedError
from polyfuse.flex.call import Written
from polyfuse.flex.problem import Array, Blocks, Problem
from polyfuse.symbolic import python_text
from polyfuse_cutlass.attention.lines import line_of, line_text
from polyfuse_cutlass.attention.scores import function_text, mask_text
from polyfuse_cutlass.attention.text import AttentionText, check_copied, check_pairs, multiplication
from polyfuse_cutlass.attention.tiles import Tiles, tiles_of
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.codegen.text import device_text


def forward_source(
    problem: Problem, operands: Sequence[Array], lists: Sequence[Blocks], results: Sequence[Array]
) -> Written:
    """Attention: `operands` are queries, keys and values, `results` the output, the logarithms of the sums of
    each query's exponentials, and maybe its greatest score.

    Raises `UnsupportedError` for what the copy engine cannot fetch, or functions that CUDA does not have.
    """
    line = line_of(problem) is not None
    waits = line or problem.is_plain
    tiles = tiles_of(problem, waits)
    check_copied(operands)
    check_pairs(results[:1])
    if problem.values % 2:
        raise UnsupportedError("values of an odd length are not stored in pairs")
    text = AttentionText(problem, (*operands, *results), results, lists)
    numbers = {"VALUES": tiles.values, "TAKEN": problem.values}
    parts = [
        *text.constants(tiles, numbers, {"LINE": line}, waits),
        device_text("attention_coord.cuh"),
        *text.args(),
        *_coordinates(text, operands),
        *text.steps(problem.query_block, problem.key_block, tiles.keys, "KEYS", "key_count"),
        function_text(problem, "changed", problem.score, text.names, text.sizes),
        line_text(problem, text.names, text.sizes),
        mask_text(problem, text.names, text.sizes),
        *_stores(text, results),
        multiplication("multiply_scores", tiles.keys, problem, (False, False)),
        multiplication("multiply_sums", tiles.values, problem, (False, True), registers=True),
        device_text("attention_parts.cuh"),
        device_text("attention.cuh"),
    ]
    return text.written("flex_attention", parts, _meta(text, tiles, operands))


def _coordinates(text: AttentionText, operands: Sequence[Array]) -> list[str]:
    """Functions that give the coordinates of a block, of its keys and of its values."""
    p = text.problem
    q, k, v = operands
    batch = text.shared(p.batch, p.key_batch, "at.batch")
    head = text.shared(p.heads, p.key_heads, "at.head")
    return [
        "// The longest lists are usually those of the last queries.",
        "PF_INLINE Coord block_coord(const Args& args) {",
        f"  const int heads = {text.number(p.heads)}, batches = {text.number(p.batch)};",
        "  const int tiles = (query_count(args) + ROWS - 1) / ROWS;",
        "  const Turn turn(blockIdx.x, tiles, batches * heads);",
        "  return {turn.head / heads, turn.head % heads, (tiles - 1 - turn.tile) * ROWS};",
        "}",
        "// Heads and batches, as coordinates of tensor maps.",
        "PF_INLINE void operand_coords(const Args& args, const Coord& at, int (&q)[2], int (&k)[2], "
        "int (&v)[2]) {",
        f"  const int batch = {batch}, head = {head};",
        *text.counted("q", q, "at.batch", "at.head"),
        *text.counted("k", k, "batch", "head"),
        *text.counted("v", v, "batch", "head"),
        "}",
    ]


def _stores(text: AttentionText, results: Sequence[Array]) -> list[str]:
    out, sums, *greatest = results
    indices = ("at.batch", "at.head", "m")
    return [
        "PF_INLINE void store_pair(const Args& args, const Coord& at, int m, int c, u32 pair) {",
        f"  *(u32*)&args.{text.element(out, *indices, 'c')} = pair;",
        "}",
        "PF_INLINE void finish_row(const Args& args, const Coord& at, int m, f32 top, f32 total) {",
        f"  args.{text.element(sums, *indices)} = top + total;",
        *(f"  args.{text.element(array, *indices)} = top;" for array in greatest),
        "}",
    ]


def _meta(text: AttentionText, tiles: Tiles, operands: Sequence[Array]) -> KernelMeta:
    p = text.problem
    q, k, v = operands
    maps = (
        text.query_map(q, p.depth, tiles.rows),
        text.key_map(k, p.depth, tiles.keys),
        text.key_map(v, p.values, tiles.keys),
    )
    queries = f"-(-({python_text(p.queries)}) // {tiles.rows})"
    return text.meta(tiles, maps, f"{queries} * ({python_text(p.batch)}) * ({python_text(p.heads)})")
