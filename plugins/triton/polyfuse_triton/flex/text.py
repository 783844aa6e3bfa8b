"""Text that the kernels of flexible attention share: addresses, tiles, masks, lists of blocks, scores.

Each program owns a tile of queries, or of keys and values, and walks through the blocks of the others that
its list names. Scores are never stored. Exponentials and logarithms are of base two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from polyfuse.flex.call import Written
from polyfuse.flex.problem import SCORE, Array, Blocks, Problem, arguments_of
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, python_text
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.dtypes import pointer_type
from polyfuse_triton.flex.scores import Scores
from polyfuse_triton.flex.tiles import Tiles
from polyfuse_triton.tiling.plan import power_of_two

_LOG2E = math.log2(math.e)
_LANES = {"dc": "[None, :]", "dr": "[:, None]", "vc": "[None, :]"}
"""Steps along queries and keys (`d`), as columns and as rows, and along values (`v`)."""
_ENDLESS = 1 << 24
"""Side of a block that covers all there is: where there is no mask."""


class KernelText:
    """A kernel while its text is written: what all three share.

    Scores lie with the axes `order` down the rows and along the columns: with keys down the rows where their
    weights are operand A of matmuls, which is read from registers then.
    """

    def __init__(
        self,
        problem: Problem,
        tiles: Tiles,
        arrays: Sequence[Array],
        lists: Sequence[Blocks],
        order: str = "mn",
    ) -> None:
        self.problem = problem
        self.order = order
        self.tiles = tiles
        self.lists = lists
        given = arguments_of(problem, arrays, lists)
        self.arrays, self.symbols = given.arrays, given.sizes
        self.names = {array.name: f"t{k}" for k, array in enumerate(self.arrays)}
        self.arguments = {**self.names, **{s: s for s in self.symbols}}
        self.out = Writer()
        self.depth, self.values = (power_of_two(max(16, n)) for n in (problem.depth, problem.values))
        self.precision = ""
        if problem.dtype.itemsize == 4:
            self.precision = f', input_precision="{"ieee" if problem.exact else "tf32"}"'

    def line(self, text: str) -> None:
        """Add a line."""
        self.out.line(text)

    def scores(self, prefix: str) -> Scores:
        """The user's functions in one loop."""
        sides = {"m": self.tiles.queries, "n": self.tiles.keys}
        blocks = {name: sides[name] for name in self.order}
        return Scores(self.problem, blocks, self.out, self.arguments, prefix)

    def written(self, name: str, write: Callable[[], None], grid: str, aligned: bool) -> Written:
        """The whole kernel."""
        constants = (("MBLOCK", self.tiles.queries), ("NBLOCK", self.tiles.keys))
        with self.out.indented(), self.out.detached() as body:
            write()
        parameters = [*self.arguments.values(), *(f"{constant}: tl.constexpr" for constant, _ in constants)]
        self.line("@triton.jit")
        self.line(f"def {Source.SYMBOL}({', '.join(parameters)}):")
        self.out.add(body)
        args = [MetaArg(self.names[a.name], "ptr", pointer_type(a.dtype), aligned) for a in self.arrays]
        meta = KernelMeta(
            args=(*args, *(MetaArg(s, "size", "i64") for s in self.symbols)),
            constexprs=constants,
            num_warps=self.tiles.warps,
            num_stages=self.tiles.stages,
            grid=(grid, 1, 1),
        )
        source = Source(name, self.out.text(), "triton", meta=meta.text())
        return Written(source, tuple(a.name for a in self.arrays), tuple(self.symbols.values()))

    def at(self, array: Array, *indices: str) -> str:
        """The address of an element, or of several; scalars should have 64 bits."""
        terms = []
        for index, step in zip(indices, array.stride, strict=True):
            if index != "0" and step != 0:
                terms.append(index if step == 1 else f"{index} * {size_text(step)}")
        return " + ".join([self.names[array.name], *terms])

    def tile(self, array: Array, start: str, rows: str, columns: str, mask: Iterable[str]) -> str:
        """The load of a tile of a matrix, whose first row is `start`."""
        first = self.at(array, "b64" if len(array.stride) == 4 else "0", "h64", start, "0")
        return self.load(array, first, rows, columns, mask)

    def load(self, array: Array, first: str, rows: str, columns: str, mask: Iterable[str]) -> str:
        """The load of a tile that begins at an address."""
        steps = [
            index if step == 1 else f"{index} * {size_text(step)}"
            for index, step in zip((rows, columns), array.stride[2:], strict=True)
        ]
        masks = " & ".join(m for m in mask if m)
        extra = f", mask={masks}, other=0.0" if masks else ""
        return f"tl.load({first} + ({' + '.join(steps)}){extra})"

    def counts(self, per: str, size: IndexLike) -> str:
        """The number of tiles along a size, as text in the kernel."""
        return f"(({size_text(size)} + {per} - 1) // {per})"

    def side(self, name: str) -> tuple[IndexLike, int, int]:
        """How many queries (`m`) or keys (`n`) there are, in a tile, and in a block of the mask."""
        p, tiles = self.problem, self.tiles
        return (p.queries, tiles.queries, p.query_block) if name == "m" else (p.keys, tiles.keys, p.key_block)

    def define_indices(self, name: str) -> None:
        """Names of the queries (`m`) of a tile that begins at `m0`, or of its keys (`n`)."""
        self.line(f"{name} = {name}0 + {name}l")
        if self.masks(name):
            size = size_text(self.side(name)[0])
            self.line(f"{name}m = {name} < {size}")
            self.line(f"{name}mt = {name}0 + {name}t < {size}")
        self.line(f"{name}64 = tl.cast({name}0, tl.int64)")

    def masks(self, name: str, transposed: bool = False) -> str:
        """The name of the mask of queries (`m`) or keys (`n`; transposed: down the rows); empty for full
        tiles.
        """
        size, tile, _ = self.side(name)
        full = isinstance(size, int) and size % tile == 0
        return "" if full else f"{name}m" + ("t" if transposed else "")

    def begin_lanes(self) -> dict[str, str]:
        """Define steps inside tiles, and give the masks of the last dimension, empty where it is full."""
        for name, side in (("m", "MBLOCK"), ("n", "NBLOCK")):
            along = "[:, None]" if name == self.order[0] else "[None, :]"
            self.line(f"{name}l = tl.arange(0, {side}){along}")
            self.line(f"{name}t = tl.arange(0, {side})[:, None]")
        masks = {}
        sizes = {"d": (self.problem.depth, self.depth), "v": (self.problem.values, self.values)}
        for lane, along in _LANES.items():
            size, whole = sizes[lane[0]]
            self.line(f"{lane} = tl.arange(0, {whole}){along}")
            masks[lane] = "" if size == whole else f"{lane}m"
            if masks[lane]:
                self.line(f"{masks[lane]} = {lane} < {size}")
        return masks

    def each_list(self, name: str) -> Iterator[tuple[Scores, Blocks]]:
        """For each list, write a loop over its tiles of queries or keys (`name`) around what the caller
        writes, who gets the user's functions in that loop.
        """
        for number, item in enumerate(self.lists):
            scores = self.scores("xyz"[number])
            scores.before(name)
            self.line(self._begin_list(item, name))
            with self.out.indented():
                self._this_tile(name)
                self.define_indices(name)
                yield scores, item
                self._next_tile(item, name)

    def _begin_list(self, item: Blocks, name: str) -> str:
        """Define where a list is, and where its first tile of queries or keys (`name`) begins; give the head
        of the loop over its tiles.
        """
        p, (size, step, block) = self.problem, self.side(name)
        batch = "0" if p.mask_batch == 1 else "b64"
        head = "0" if p.mask_heads == 1 else "h64"
        self.line(f"count = tl.load({self.at(item.count, batch, head, 'row')})")
        many = block // step
        if block >= _ENDLESS:
            # one block is longer than all there is, so the tiles are simply all of it
            limit = f"tl.cast({self.counts(f'{name.upper()}BLOCK', size)}, tl.int32)"
            self.line(f"limit = tl.minimum(tl.minimum(count, {limit}) * {many}, {limit})")
        else:
            self.line(f"entries = {self.at(item.index, batch, head, 'row', '0')}")
            self.line("limit = count" if many == 1 else f"limit = count * {many}")
            self.line(f"{name}0 = tl.load(entries) * {block}")
        return "for i in range(0, limit):"

    def _this_tile(self, name: str) -> None:
        """Define where the tile of this iteration begins, where that does not follow from the list."""
        _, step, block = self.side(name)
        if block >= _ENDLESS:
            self.line(f"{name}0 = i * {step}")

    def _next_tile(self, item: Blocks, name: str) -> None:
        """Read where the next tile begins: early, so that what lies there can be fetched ahead."""
        _, step, block = self.side(name)
        if block >= _ENDLESS:
            return
        many, stride = block // step, size_text(item.index.stride[3])
        self.line("after = i + 1")
        position = "after" if many == 1 else f"after // {many}"
        inside = "" if many == 1 else f" + after % {many} * {step}"
        given = f"tl.load(entries + {position} * {stride}, mask=after < limit, other=0)"
        self.line(f"{name}0 = {given} * {block}{inside}")

    def score_matmul(self) -> str:
        """The matmul of queries and keys: scores before `score_mod`, without their scale if it is trivial."""
        operands = "qt, kt" if self.order == "mn" else "kn, tl.trans(qt)"
        matmul = f"tl.dot({operands}{self.precision})"
        return matmul if self.problem.is_plain else f"{matmul} * {self.problem.scale!r}"

    @property
    def factor(self) -> str:
        """What makes scores in `x` those of base two. It is positive, so it can follow the greatest of them,
        and with the subtraction of that is one instruction a score.
        """
        return repr(_LOG2E * self.problem.scale if self.problem.is_plain else _LOG2E)

    def changed(self, scores: Scores, whole: bool, keep_queries: bool) -> None:
        """From the matmul in `s` to changed scores in `x`, minus infinity where they do not count, without
        their `factor`; `keep` names what counts.
        """
        p = self.problem
        scores.given(SCORE, "s")
        x = scores.value(p.score)
        conditions = [m for m in (self.masks("n"), self.masks("m") if keep_queries else "") if m]
        if p.mask is not None and not whole:
            conditions.insert(0, scores.value(p.mask))
        if conditions:
            self.line(f"keep = {' & '.join(conditions)}")
            x = f'tl.where(keep, {x}, float("-inf"))'
        self.line(f"x = {x}")

    def counted(self, whole: bool, keep_queries: bool) -> bool:
        """Whether `changed` defines `keep`."""
        masked = self.problem.mask is not None and not whole
        return bool(masked or self.masks("n") or (keep_queries and self.masks("m")))

    def begin_queries(self) -> None:
        """Where a program of queries stands. Programs with the longest lists, usually the last, go first."""
        p = self.problem
        tiles = self.counts("MBLOCK", p.queries)
        self.line("program = tl.program_id(0)")
        self.line(f"m0 = (({tiles} - 1 - program % {tiles}) * MBLOCK).to(tl.int32)")
        self.line(f"z = program // {tiles}")
        self.line(f"h = (z % {size_text(p.heads)}).to(tl.int32)")
        self.line(f"b = (z // {size_text(p.heads)}).to(tl.int32)")
        self.line("h64 = tl.cast(h, tl.int64)")
        self.line("b64 = tl.cast(b, tl.int64)")
        self.line(f"kh64 = h64 // ({size_text(p.heads)} // {size_text(p.key_heads)})")
        self.line(f"kb64 = b64 // ({size_text(p.batch)} // {size_text(p.key_batch)})")
        self.line(f"row = tl.cast(m0 // {p.query_block}, tl.int64)")

    def shared(self, array: Array, start: str) -> str:
        """Where a tile of keys or values of a query's head begins."""
        return self.at(array, "kb64", "kh64", start, "0")

    def store(self, array: Array, text: str, start: str, rows: str, columns: str, mask: str) -> None:
        """Store a tile of a matrix, whose first row is `start`."""
        masks = " & ".join(m for m in (self.masks("m"), mask) if m)
        given = f", mask={masks}" if masks else ""
        offset = f"{rows} * {size_text(array.stride[2])} + {columns} * {size_text(array.stride[3])}"
        self.line(f"tl.store({self.at(array, 'b64', 'h64', start, '0')} + ({offset}), {text}{given})")

    def store_row(self, array: Array, text: str) -> None:
        """Store a number for each query of the tile."""
        mask = self.masks("m")
        given = f", mask={mask}" if mask else ""
        first = self.at(array, "b64", "h64", "m64")
        self.line(f"tl.store({first} + ml * {size_text(array.stride[2])}, {text}{given})")

    def grid(self, size: IndexLike, block: int, by_keys: bool) -> str:
        """The number of programs: one for each tile of queries, or of keys, of each head and batch."""
        p = self.problem
        batch, heads = (p.key_batch, p.key_heads) if by_keys else (p.batch, p.heads)
        return f"({size_text(size)} + {block - 1}) // {block} * {size_text(batch)} * {size_text(heads)}"


def size_text(size: IndexLike) -> str:
    """A size in the kernel's text."""
    return str(size) if isinstance(size, int) else f"({python_text(size)})"
