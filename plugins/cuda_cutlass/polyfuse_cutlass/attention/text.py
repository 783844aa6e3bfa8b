"""What the texts of attention's kernels have in common: arguments, coordinates, the walk through lists of
blocks, and tensor maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.base.errors import UnsupportedError
from polyfuse.flex.call import Written
from polyfuse.flex.problem import Array, Blocks, Problem, arguments_of
from polyfuse.kit import is_multiple
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, is_equal, python_text
from polyfuse_cutlass.attention.scores import factors, reads_memory
from polyfuse_cutlass.attention.tiles import ENDLESS, LANES, BackwardTiles, Tiles
from polyfuse_cutlass.build.meta import KernelMeta, MetaArg, TensorMap
from polyfuse_cutlass.codegen.hopper import MAP_TYPES, MMA_TYPES
from polyfuse_cutlass.codegen.text import LANGUAGE, constants, device_text, index_text
from polyfuse_cutlass.problem import COPY_ALIGNMENT

_HEADERS = ("types.cuh", "math.cuh", "hopper.cuh")
_SIZE = 2
"""Bytes of an element."""


def is_copied(stride: Sequence[IndexLike]) -> bool:
    """Whether the copy engine fetches an operand with these strides, where it begins at a multiple of 16
    bytes.
    """
    return stride[3] == 1 and all(is_multiple(step, COPY_ALIGNMENT // _SIZE) for step in stride[:3])


def check_copied(operands: Sequence[Array]) -> None:
    """Raises `UnsupportedError` for operands that the copy engine cannot fetch."""
    for array in operands:
        if array.stride[3] != 1:
            raise UnsupportedError("the numbers of a query, key or value are no neighbours in memory")
        if not is_copied(array.stride):
            raise UnsupportedError("a query, key or value may not begin at a multiple of 16 bytes")


def check_pairs(results: Sequence[Array]) -> None:
    """Raises `UnsupportedError` for results that are not stored two neighbours at a time."""
    for out in results:
        if out.stride[3] != 1 or not all(is_multiple(stride, 2) for stride in out.stride[:3]):
            raise UnsupportedError("the numbers of a result are no neighbours in memory")


class AttentionText:
    """A kernel on its way to text.

    Args:
        problem: the call.
        arrays: operands and results, in the order of the kernel's arguments.
        results: names of those that are written.
        lists: the blocks of keys of each block of queries, or those of queries of each block of keys.
    """

    def __init__(
        self, problem: Problem, arrays: Sequence[Array], results: Sequence[Array], lists: Sequence[Blocks]
    ) -> None:
        self.problem = problem
        self.lists = lists
        given = arguments_of(problem, arrays, lists)
        self.arrays, self.symbols = given.arrays, given.sizes
        self.names = {array.name: f"t{k}" for k, array in enumerate(self.arrays)}
        self.sizes = {name: f"args.{name}" for name in self.symbols}
        self._results = {array.name for array in results}

    def written(self, name: str, parts: Sequence[str], meta: KernelMeta) -> Written:
        """The kernel of `parts`, and what it is called with."""
        headers = (device_text(header) for header in _HEADERS)
        text = "\n".join([*headers, f"namespace in_{Source.SYMBOL} {{", *parts, "}", ""])
        source = Source(name, text, LANGUAGE, meta=meta.text())
        return Written(source, tuple(a.name for a in self.arrays), tuple(self.symbols.values()))

    def constants(
        self,
        tiles: Tiles | BackwardTiles,
        numbers: Mapping[str, int],
        truths: Mapping[str, bool],
        waits: bool,
    ) -> list[str]:
        """Definitions that both kernels have, with more `numbers` and `truths`; `waits` as for `factors`."""
        p = self.problem
        shared = {
            "GROUPS": tiles.groups,
            "ROWS": tiles.rows,
            "KEYS": tiles.keys,
            "DEPTH": tiles.depth,
            "STAGES": tiles.stages,
            "LISTS": len(self.lists),
            "PRODUCER_REGISTERS": tiles.registers[0],
            "CONSUMER_REGISTERS": tiles.registers[1],
        }
        facts = {
            "CHANGES": not waits,
            "MASKS": p.mask is not None,
            "READS": reads_memory(p),
            "ROWS_FIT": is_multiple(p.queries, tiles.rows),
            "KEYS_FIT": is_multiple(p.keys, tiles.keys),
        }
        types = {"Element": p.dtype.value}
        return [*constants({**shared, **numbers}, {**facts, **truths}, types), factors(p, waits)]

    # --- arguments -----------------------------------------------------------------------------------------

    def args(self) -> list[str]:
        """The structure of arguments, and how many queries and keys there are."""
        p = self.problem
        return [
            "struct Args {",
            *(
                f"  {'' if a.name in self._results else 'const '}{a.dtype.value}* {self.names[a.name]};"
                for a in self.arrays
            ),
            *(f"  i64 {name};" for name in self.symbols),
            "};",
            f"PF_INLINE int query_count(const Args& args) {{ return {self.number(p.queries)}; }}",
            f"PF_INLINE int key_count(const Args& args) {{ return {self.number(p.keys)}; }}",
        ]

    def number(self, size: IndexLike) -> str:
        """A size as an integer of 32 bits."""
        return f"(int)({index_text(size, self.sizes)})"

    def element(self, array: Array, *indices: str) -> str:
        """An element of an argument."""
        terms = [
            f"(i64){index}" if step == 1 else f"(i64){index} * ({index_text(step, self.sizes)})"
            for index, step in zip(indices, array.stride, strict=True)
            if index != "0" and step != 0
        ]
        return f"{self.names[array.name]}[{' + '.join(terms) or '0'}]"

    # --- coordinates ----------------------------------------------------------------------------------------

    def shared(self, total: IndexLike, few: IndexLike, index: str) -> str:
        """The index among `few` heads (batches) of keys for the `index` among `total` of queries."""
        return index if is_equal(total, few) else f"{index} / ({self.number(total)} / {self.number(few)})"

    def counted(self, name: str, array: Array, batch: str, head: str) -> list[str]:
        """Statements that set head and batch as the copy engine counts them: what is shared by all is one."""
        return [
            f"  {name}[0] = {'0' if array.stride[1] == 0 else head};",
            f"  {name}[1] = {'0' if array.stride[0] == 0 else batch};",
        ]

    def steps(self, own: int, block: int, tile: int, side: str, count: str) -> list[str]:
        """Functions that walk through the lists of blocks.

        Args:
            own: rows of a block of the mask along what the kernel's block keeps.
            block, tile: the same, and what a tile has, along the other side.
            side, count: names of the constant and of the function for `tile`, and for how many there are.
        """
        p = self.problem
        batch = "0" if p.mask_batch == 1 else "at.batch"
        head = "0" if p.mask_heads == 1 else "at.head"
        counts, tiles = [], []
        for number, item in enumerate(self.lists):
            found = f"args.{self.element(item.count, batch, head, 'row')}"
            masked = str(not item.whole and p.mask is not None).lower()
            if block >= ENDLESS:
                # one block is longer than all there is, so the tiles are simply all of it
                counts.append(f"min({found}, 1) * (({count}(args) + {side} - 1) / {side})")
                tile_text = f"Tile(j * {side}, {masked})"
            else:
                many = block // tile
                counts.append(f"{found} * {many}")
                index = f"args.{self.element(item.index, batch, head, 'row', f'(j / {many})')}"
                tile_text = f"Tile({index} * {block} + j % {many} * {side}, {masked})"
            if number + 1 < len(self.lists):
                tiles += [
                    f"  if (j < steps.count[{number}]) return {tile_text};",
                    f"  j -= steps.count[{number}];",
                ]
            else:
                tiles.append(f"  return {tile_text};")
        row = f"  const i64 row = at.row / {own};"
        return [
            "PF_INLINE Steps steps_of(const Args& args, const Coord& at) {",
            row,
            f"  return {{{{{', '.join(counts)}}}}};",
            "}",
            "PF_INLINE Tile tile_of(const Args& args, const Coord& at, const Steps& steps, int j) {",
            row,
            *tiles,
            "}",
        ]

    # --- the launch ----------------------------------------------------------------------------------------

    def meta(self, tiles: Tiles | BackwardTiles, maps: tuple[TensorMap, ...], blocks: str) -> KernelMeta:
        """The launch of so many blocks: arrays, then sizes, behind the maps."""
        arrays = (MetaArg(self.names[a.name], True) for a in self.arrays)
        return KernelMeta(
            args=(*arrays, *(MetaArg(name, False) for name in self.symbols)),
            maps=maps,
            tiles=blocks,
            cluster=1,
            read_only=False,
            threads=tiles.threads,
            shared=tiles.shared_bytes,
            fuse=self.problem.is_fast,
            dependent_launch=True,
        )

    def query_map(self, array: Array, length: int, rows: int) -> TensorMap:
        """How the copy engine sees what each query has, in boxes of `rows`."""
        p = self.problem
        return self._map(array, (p.batch, p.heads, p.queries, length), rows)

    def key_map(self, array: Array, length: int, rows: int) -> TensorMap:
        """How the copy engine sees what each key has, in boxes of `rows`."""
        p = self.problem
        return self._map(array, (p.key_batch, p.key_heads, p.keys, length), rows)

    def _map(self, array: Array, size: Sequence[IndexLike], rows: int) -> TensorMap:
        extents = [n if step != 0 else 1 for n, step in zip(size, array.stride, strict=True)]
        # the copy engine takes no step of zero, which is never taken
        strides = [
            python_text(step * _SIZE) if step != 0 else str(COPY_ALIGNMENT) for step in array.stride[:3]
        ]
        return TensorMap(
            [a.name for a in self.arrays].index(array.name),
            "0",
            MAP_TYPES[self.problem.dtype],
            tuple(python_text(n) for n in reversed(extents)),
            tuple(reversed(strides)),
            (LANES, rows, 1, 1),
        )


def multiplication(
    name: str, columns: int, problem: Problem, along: tuple[bool, bool], registers: bool = False
) -> str:
    """A function that starts one instruction on 64 rows.

    Args:
        along: whether the operands' rows in memory run along the result instead of the depth.
        registers: whether the left operand is in registers.
    """
    kind = MMA_TYPES[problem.dtype]
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    rows = 4 if registers else 1
    left = ", ".join(f"%{count + i}" for i in range(rows))
    left = f"{{{left}}}" if registers else left
    parameters = "u32 a0, u32 a1, u32 a2, u32 a3" if registers else "u64 a"
    inputs = '"r"(a0), "r"(a1), "r"(a2), "r"(a3)' if registers else '"l"(a)'
    layout = f"{along[1]:d}" if registers else f"{along[0]:d}, {along[1]:d}"
    return f"""// d += a * b, or d = a * b where not `more`
PF_INLINE void {name}(f32 (&d)[{count}], {parameters}, u64 b, int more) {{
  asm volatile("{{\\n.reg .pred more;\\nsetp.ne.b32 more, %{count + rows + 1}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, {left}, "
               "%{count + rows}, more, 1, 1, {layout};\\n}}"
               : {outputs} : {inputs}, "l"(b), "r"(more));
}}"""
