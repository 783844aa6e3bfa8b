"""The forward kernel of flexible attention as CUDA C++: constants, how its arguments are read, the user's
functions, and the fixed text.

Scores are never stored. Exponentials and logarithms are of base two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyfuse.base.errors import UnsupportedError
from polyfuse.kit import is_multiple
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, is_equal, python_text
from polyfuse_cuda.flex.call import Written
from polyfuse_cuda.flex.problem import Array, Blocks, Problem, arguments_of
from polyfuse_cutlass.attention.scores import function_text, reads_memory
from polyfuse_cutlass.attention.tiles import ENDLESS, LANES, Tiles, tiles_of
from polyfuse_cutlass.build.meta import KernelMeta, MetaArg, TensorMap
from polyfuse_cutlass.codegen.hopper import LANGUAGE, MAP_TYPES, MMA_TYPES
from polyfuse_cutlass.codegen.indexing import index_text
from polyfuse_cutlass.problem import COPY_ALIGNMENT
from polyfuse_cutlass.templates.text import constants, device_text

__all__ = ["forward_source"]

_HEADERS = ("types.cuh", "math.cuh", "hopper.cuh")
_SIZE = 2
"""Bytes of an element."""


def forward_source(
    problem: Problem, operands: Sequence[Array], lists: Sequence[Blocks], results: Sequence[Array]
) -> Written:
    """Attention: `operands` are queries, keys and values, `results` the output, the logarithms of the sums of
    each query's exponentials, and maybe its greatest score.

    Raises `UnsupportedError` for what the copy engine cannot fetch, or functions that CUDA does not have.
    """
    tiles = tiles_of(problem)
    _check(operands, results)
    return _Kernel(problem, tiles, operands, lists, results).written()


def _check(operands: Sequence[Array], results: Sequence[Array]) -> None:
    step = COPY_ALIGNMENT // _SIZE
    for array in operands:
        if array.stride[3] != 1:
            raise UnsupportedError("the numbers of a query, key or value are no neighbours in memory")
        if not all(is_multiple(stride, step) for stride in array.stride[:3]):
            raise UnsupportedError("a query, key or value may not begin at a multiple of 16 bytes")
    out = results[0]
    if out.stride[3] != 1 or not all(is_multiple(stride, 2) for stride in out.stride[:3]):
        raise UnsupportedError("the numbers of a result are no neighbours in memory")


class _Kernel:
    """One kernel on its way to text."""

    def __init__(
        self,
        problem: Problem,
        tiles: Tiles,
        operands: Sequence[Array],
        lists: Sequence[Blocks],
        results: Sequence[Array],
    ) -> None:
        if problem.values % 2:
            raise UnsupportedError("values of an odd length are not stored in pairs")
        self._problem, self._tiles = problem, tiles
        self._operands, self._lists, self._results = operands, lists, results
        given = arguments_of(problem, (*operands, *results), lists)
        self._arrays, self._symbols = given.arrays, given.sizes
        self._names = {array.name: f"t{k}" for k, array in enumerate(self._arrays)}
        self._sizes = {name: f"args.{name}" for name in self._symbols}

    def written(self) -> Written:
        """The kernel and what it is called with."""
        text = "\n".join(
            [
                *(device_text(name) for name in _HEADERS),
                f"namespace in_{Source.SYMBOL} {{",
                *self._constants(),
                device_text("attention_place.cuh"),
                *self._args(),
                *self._places(),
                *self._steps(),
                *self._functions(),
                *self._stores(),
                _multiplication("multiply_keys", self._tiles.keys, MMA_TYPES[self._problem.dtype], False),
                _multiplication("multiply_values", self._tiles.values, MMA_TYPES[self._problem.dtype], True),
                device_text("attention.cuh"),
                "}",
                "",
            ]
        )
        source = Source("flex_attention", text, LANGUAGE, meta=self._meta().text())
        return Written(source, tuple(a.name for a in self._arrays), tuple(self._symbols.values()))

    # --- text ----------------------------------------------------------------------------------------------

    def _constants(self) -> list[str]:
        p, tiles = self._problem, self._tiles
        numbers = {
            "GROUPS": tiles.groups,
            "KEYS": tiles.keys,
            "DEPTH": tiles.depth,
            "VALUES": tiles.values,
            "TAKEN": p.values,
            "STAGES": tiles.stages,
            "LISTS": len(self._lists),
            "PRODUCER_REGISTERS": tiles.registers[0],
            "CONSUMER_REGISTERS": tiles.registers[1],
        }
        truths = {
            "CHANGES": not p.is_plain,
            "MASKS": p.mask is not None,
            "READS": reads_memory(p),
            "ROWS_FIT": is_multiple(p.queries, tiles.rows),
            "KEYS_FIT": is_multiple(p.keys, tiles.keys),
        }
        factor = math.log2(math.e) * (p.scale if p.is_plain else 1)
        return [
            *constants(numbers, truths, {"Element": p.dtype.value}),
            f"constexpr f32 SCALE = {p.scale!r}f, FACTOR = {factor!r}f;",
        ]

    def _args(self) -> list[str]:
        results = {array.name for array in self._results}
        return [
            "struct Args {",
            *(
                f"  {'' if a.name in results else 'const '}{a.dtype.value}* {self._names[a.name]};"
                for a in self._arrays
            ),
            *(f"  i64 {name};" for name in self._symbols),
            "};",
        ]

    def _number(self, size: IndexLike) -> str:
        return f"(int)({index_text(size, self._sizes)})"

    def _places(self) -> list[str]:
        """Functions that say where a block, its keys and its values are."""
        p = self._problem
        shared = {
            "batch": (p.batch, p.key_batch, "at.batch"),
            "head": (p.heads, p.key_heads, "at.head"),
        }
        keys = {
            name: place if is_equal(all_, few) else f"{place} / ({self._number(all_)} / {self._number(few)})"
            for name, (all_, few, place) in shared.items()
        }
        lines = [
            f"PF_INLINE int query_count(const Args& args) {{ return {self._number(p.queries)}; }}",
            f"PF_INLINE int key_count(const Args& args) {{ return {self._number(p.keys)}; }}",
            "// Queries with the longest lists, usually the last, go first.",
            "PF_INLINE Place block_place(const Args& args) {",
            "  const int tiles = (query_count(args) + ROWS - 1) / ROWS, z = blockIdx.x / tiles;",
            f"  const int heads = {self._number(p.heads)};",
            "  return {z / heads, z % heads, (tiles - 1 - (int)blockIdx.x % tiles) * ROWS};",
            "}",
            "// Heads and batches, as the copy engine counts them.",
            "PF_INLINE void operand_places(const Args& args, const Place& at, int (&q)[2], int (&k)[2], "
            "int (&v)[2]) {",
            f"  const int batch = {keys['batch']}, head = {keys['head']};",
        ]
        given = (("q", "at.batch", "at.head"), ("k", "batch", "head"), ("v", "batch", "head"))
        for array, (name, batch, head) in zip(self._operands, given, strict=True):
            # what is shared by all is one
            lines.append(f"  {name}[0] = {'0' if array.stride[1] == 0 else head};")
            lines.append(f"  {name}[1] = {'0' if array.stride[0] == 0 else batch};")
        return [*lines, "}"]

    def _steps(self) -> list[str]:
        """Functions that walk through the lists of blocks."""
        p = self._problem
        batch = "0" if p.mask_batch == 1 else "at.batch"
        head = "0" if p.mask_heads == 1 else "at.head"
        counts, tiles = [], []
        for number, item in enumerate(self._lists):
            count = f"args.{self._element(item.count, batch, head, 'row')}"
            masked = str(not item.whole and p.mask is not None).lower()
            if p.key_block >= ENDLESS:
                # one block is longer than all there is, so the tiles are simply all of it
                counts.append(f"min({count}, 1) * ((key_count(args) + KEYS - 1) / KEYS)")
                found = f"Tile(j * KEYS, {masked})"
            else:
                many = p.key_block // self._tiles.keys
                counts.append(f"{count} * {many}")
                place = f"args.{self._element(item.index, batch, head, 'row', f'(j / {many})')}"
                found = f"Tile({place} * {p.key_block} + j % {many} * KEYS, {masked})"
            if number + 1 < len(self._lists):
                tiles += [
                    f"  if (j < steps.count[{number}]) return {found};",
                    f"  j -= steps.count[{number}];",
                ]
            else:
                tiles.append(f"  return {found};")
        row = f"  const i64 row = at.row / {p.query_block};"
        return [
            "PF_INLINE Steps steps_of(const Args& args, const Place& at) {",
            row,
            f"  return {{{{{', '.join(counts)}}}}};",
            "}",
            "PF_INLINE Tile tile_of(const Args& args, const Place& at, const Steps& steps, int j) {",
            row,
            *tiles,
            "}",
        ]

    def _functions(self) -> list[str]:
        p = self._problem
        found = [function_text(p, "changed", p.score, self._names, self._sizes)]
        if p.mask is not None:
            found.append(function_text(p, "counts", p.mask, self._names, self._sizes))
        else:
            found.append("PF_INLINE bool counts(const Args&, int, int, int, int) { return true; }")
        return found

    def _stores(self) -> list[str]:
        out, sums, *greatest = self._results
        place = ("at.batch", "at.head", "m")
        return [
            "PF_INLINE void store_pair(const Args& args, const Place& at, int m, int c, u32 pair) {",
            f"  *(u32*)&args.{self._element(out, *place, 'c')} = pair;",
            "}",
            "PF_INLINE void finish_row(const Args& args, const Place& at, int m, f32 top, f32 total) {",
            f"  args.{self._element(sums, *place)} = top + total;",
            *(f"  args.{self._element(array, *place)} = top;" for array in greatest),
            "}",
        ]

    def _element(self, array: Array, *places: str) -> str:
        terms = [
            f"(i64){place}" if step == 1 else f"(i64){place} * ({index_text(step, self._sizes)})"
            for place, step in zip(places, array.stride, strict=True)
            if place != "0" and step != 0
        ]
        return f"{self._names[array.name]}[{' + '.join(terms) or '0'}]"

    # --- the launch ----------------------------------------------------------------------------------------

    def _meta(self) -> KernelMeta:
        p, tiles = self._problem, self._tiles
        q, k, v = self._operands
        queries = f"-(-({python_text(p.queries)}) // {tiles.rows})"
        return KernelMeta(
            args=(
                *(MetaArg(self._names[a.name], True) for a in self._arrays),
                *(MetaArg(name, False) for name in self._symbols),
            ),
            maps=(
                self._map(q, (p.batch, p.heads, p.queries, p.depth), tiles.rows),
                self._map(k, (p.key_batch, p.key_heads, p.keys, p.depth), tiles.keys),
                self._map(v, (p.key_batch, p.key_heads, p.keys, p.values), tiles.keys),
            ),
            tiles=f"{queries} * ({python_text(p.batch)}) * ({python_text(p.heads)})",
            cluster=1,
            read_only=False,
            threads=tiles.threads,
            shared=tiles.shared_bytes,
            fuse=p.is_fast,
            dependent_launch=True,
        )

    def _map(self, array: Array, size: Sequence[IndexLike], rows: int) -> TensorMap:
        extents = [n if step != 0 else 1 for n, step in zip(size, array.stride, strict=True)]
        # the copy engine takes no step of zero, which is never taken
        strides = [
            python_text(step * _SIZE) if step != 0 else str(COPY_ALIGNMENT) for step in array.stride[:3]
        ]
        return TensorMap(
            [a.name for a in self._arrays].index(array.name),
            "0",
            MAP_TYPES[self._problem.dtype],
            tuple(python_text(n) for n in reversed(extents)),
            tuple(reversed(strides)),
            (LANES, rows, 1, 1),
        )


def _multiplication(name: str, columns: int, kind: str, from_registers: bool) -> str:
    """A function that starts one instruction on 64 rows: rows in registers times what lies along its columns,
    or operands in memory that both lie along the depth.
    """
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    rows = 4 if from_registers else 1
    left = ", ".join(f"%{count + i}" for i in range(rows))
    left = f"{{{left}}}" if from_registers else left
    parameters = "u32 a0, u32 a1, u32 a2, u32 a3" if from_registers else "u64 a"
    inputs = '"r"(a0), "r"(a1), "r"(a2), "r"(a3)' if from_registers else '"l"(a)'
    layout = "1" if from_registers else "0, 0"
    return f"""// d += a * b, or d = a * b where not `more`
PF_INLINE void {name}(f32 (&d)[{count}], {parameters}, u64 b, int more) {{
  asm volatile("{{\\n.reg .pred more;\\nsetp.ne.b32 more, %{count + rows + 1}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, {left}, "
               "%{count + rows}, more, 1, 1, {layout};\\n}}"
               : {outputs} : {inputs}, "l"(b), "r"(more));
}}"""
