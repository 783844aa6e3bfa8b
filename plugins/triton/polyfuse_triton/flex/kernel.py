"""The kernels of flexible attention as Triton text: the forward, and the two of the backward.

Each program owns a tile of queries (of keys and values in the last), and walks through the blocks of keys (of
queries) that its list names. Scores are never stored. Exponentials and logarithms are of base two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, python_text
from polyfuse_cuda.flex.call import Written
from polyfuse_cuda.flex.problem import GRADIENT, SCORE, Array, Blocks, Problem, arguments_of
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.dtypes import pointer_type, triton_type
from polyfuse_triton.flex.scores import Scores
from polyfuse_triton.flex.tiles import Tiles
from polyfuse_triton.tiling.plan import power_of_two

_LOG2E = math.log2(math.e)
_LANES = {"dc": "[None, :]", "dr": "[:, None]", "vc": "[None, :]"}
"""Steps along queries and keys (`d`), as columns and as rows, and along values (`v`)."""
_ENDLESS = 1 << 24
"""Side of a block that covers all there is: where there is no mask."""


class _Kernel:
    """What the three kernels share.

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

    # --- parts of the text --------------------------------------------------------------------------------

    def at(self, array: Array, *indices: str) -> str:
        """The address of an element, or of several; scalars should have 64 bits."""
        terms = []
        for index, step in zip(indices, array.stride, strict=True):
            if index != "0" and step != 0:
                terms.append(index if step == 1 else f"{index} * {_text(step)}")
        return " + ".join([self.names[array.name], *terms])

    def tile(self, array: Array, start: str, rows: str, columns: str, mask: Iterable[str]) -> str:
        """The load of a tile of a matrix, whose first row is `start`."""
        first = self.at(array, "b64" if len(array.stride) == 4 else "0", "h64", start, "0")
        return self.load(array, first, rows, columns, mask)

    def load(self, array: Array, first: str, rows: str, columns: str, mask: Iterable[str]) -> str:
        """The load of a tile that begins at an address."""
        steps = [
            index if step == 1 else f"{index} * {_text(step)}"
            for index, step in zip((rows, columns), array.stride[2:], strict=True)
        ]
        masks = " & ".join(m for m in mask if m)
        extra = f", mask={masks}, other=0.0" if masks else ""
        return f"tl.load({first} + ({' + '.join(steps)}){extra})"

    def counts(self, per: str, size: IndexLike) -> str:
        """The number of tiles along a size, as text in the kernel."""
        return f"(({_text(size)} + {per} - 1) // {per})"

    def side(self, name: str) -> tuple[IndexLike, int, int]:
        """How many queries (`m`) or keys (`n`) there are, in a tile, and in a block of the mask."""
        p, tiles = self.problem, self.tiles
        return (p.queries, tiles.queries, p.query_block) if name == "m" else (p.keys, tiles.keys, p.key_block)

    def define_indices(self, name: str) -> None:
        """Names of the queries (`m`) of a tile that begins at `m0`, or of its keys (`n`)."""
        self.line(f"{name} = {name}0 + {name}l")
        if self.masks(name):
            size = _text(self.side(name)[0])
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

    def begin_list(self, item: Blocks, row: str, name: str) -> str:
        """Define where a list is, and where its first tile of queries or keys (`name`) begins; give the head
        of the loop over its tiles.
        """
        p, (size, step, block) = self.problem, self.side(name)
        batch = "0" if p.mask_batch == 1 else "b64"
        head = "0" if p.mask_heads == 1 else "h64"
        self.line(f"count = tl.load({self.at(item.count, batch, head, row)})")
        many = block // step
        if block >= _ENDLESS:
            # one block is longer than all there is, so the tiles are simply all of it
            limit = f"tl.cast({self.counts(f'{name.upper()}BLOCK', size)}, tl.int32)"
            self.line(f"limit = tl.minimum(tl.minimum(count, {limit}) * {many}, {limit})")
        else:
            self.line(f"entries = {self.at(item.index, batch, head, row, '0')}")
            self.line("limit = count" if many == 1 else f"limit = count * {many}")
            self.line(f"{name}0 = tl.load(entries) * {block}")
        return "for i in range(0, limit):"

    def this_tile(self, name: str) -> None:
        """Define where the tile of this iteration begins, where that does not follow from the list."""
        _, step, block = self.side(name)
        if block >= _ENDLESS:
            self.line(f"{name}0 = i * {step}")

    def next_tile(self, item: Blocks, name: str) -> None:
        """Read where the next tile begins: early, so that what lies there can be fetched ahead."""
        _, step, block = self.side(name)
        if block >= _ENDLESS:
            return
        many, stride = block // step, _text(item.index.stride[3])
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


def forward_source(
    problem: Problem,
    tiles: Tiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    results: Sequence[Array],
    aligned: bool,
) -> Written:
    """Attention: `operands` are queries, keys and values, `results` the output, the logarithms of the sums of
    each query's exponentials, and its greatest score.
    """
    q, k, v = operands
    out, sums, *greatest = results
    kernel = _Kernel(problem, tiles, (*operands, *results), lists)
    line = kernel.line

    def write() -> None:
        _begin_queries(kernel)
        masks = kernel.begin_lanes()
        kernel.define_indices("m")
        line(f"qt = {kernel.tile(q, 'm64', 'ml', 'dc', (kernel.masks('m'), masks['dc']))}")
        line(f"acc = tl.zeros([MBLOCK, {kernel.values}], tl.float32)")
        line('top = tl.full([MBLOCK, 1], float("-inf"), tl.float32)')
        line("total = tl.zeros([MBLOCK, 1], tl.float32)")
        for number, item in enumerate(lists):
            scores = kernel.scores("xyz"[number])
            scores.before("n")
            line(kernel.begin_list(item, "row", "n"))
            with kernel.out.indented():
                kernel.this_tile("n")
                kernel.define_indices("n")
                key = _shared(kernel, k, "n64")
                line(f"kt = {kernel.load(_transposed(k), key, 'dr', 'nl', (kernel.masks('n'), masks['dr']))}")
                line(f"s = {kernel.score_matmul()}")
                kernel.changed(scores, item.whole, False)
                line(f"most = tl.maximum(top, tl.max(x, 1, keep_dims=True) * {kernel.factor})")
                line('base = tl.where(most == float("-inf"), 0.0, most)')
                line(f"p = tl.exp2(x * {kernel.factor} - base)")
                line("share = tl.exp2(top - base)")
                line("total = total * share + tl.sum(p, 1, keep_dims=True)")
                value = _shared(kernel, v, "n64")
                line(f"vt = {kernel.load(v, value, 'nt', 'vc', (kernel.masks('n', True), masks['vc']))}")
                kind = triton_type(problem.dtype)
                line(f"acc = tl.dot(p.to({kind}), vt, acc * share{kernel.precision})")
                line("top = most")
                kernel.next_tile(item, "n")
        line("whole = tl.where(total == 0.0, 1.0, total)")
        _store(kernel, out, f"(acc / whole).to({triton_type(out.dtype)})", "m64", "ml", "vc", masks["vc"])
        _store_row(kernel, sums, "top + tl.log2(whole)")
        for result in greatest:
            _store_row(kernel, result, "top")

    return kernel.written(
        "flex_attention", write, _grid(kernel, problem.queries, tiles.queries, False), aligned
    )


def query_gradient_source(
    problem: Problem,
    tiles: Tiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    result: Array,
    aligned: bool,
) -> Written:
    """The gradient of the queries. `operands`: queries, keys, values, the gradient of the output, logarithms
    of sums, and what each query's gradients have in common.
    """
    q, k, v, g, sums, common = operands
    kernel = _Kernel(problem, tiles, (*operands, result), lists)
    line, kind = kernel.line, triton_type(problem.dtype)

    def write() -> None:
        _begin_queries(kernel)
        masks = kernel.begin_lanes()
        kernel.define_indices("m")
        _load_rows(kernel, masks, q, g, sums, common)
        line(f"acc = tl.zeros([MBLOCK, {kernel.depth}], tl.float32)")
        for number, item in enumerate(lists):
            scores = kernel.scores("xyz"[number])
            scores.before("n")
            line(kernel.begin_list(item, "row", "n"))
            with kernel.out.indented():
                kernel.this_tile("n")
                kernel.define_indices("n")
                key, value = _shared(kernel, k, "n64"), _shared(kernel, v, "n64")
                transposed = kernel.masks("n", True)
                line(f"kn = {kernel.load(k, key, 'nt', 'dc', (transposed, masks['dc']))}")
                line(f"vn = {kernel.load(v, value, 'nt', 'vc', (transposed, masks['vc']))}")
                line("kt = tl.trans(kn)")
                line("vt = tl.trans(vn)")
                _gradients(kernel, scores, item.whole, False)
                line(f"acc = tl.dot(ds.to({kind}), kn, acc{kernel.precision})")
                kernel.next_tile(item, "n")
        text = f"(acc * {problem.scale!r}).to({triton_type(result.dtype)})"
        _store(kernel, result, text, "m64", "ml", "dc", masks["dc"])

    grid = _grid(kernel, problem.queries, tiles.queries, False)
    return kernel.written("flex_attention_queries", write, grid, aligned)


def key_gradient_source(
    problem: Problem,
    tiles: Tiles,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    results: Sequence[Array],
    aligned: bool,
) -> Written:
    """The gradients of keys and values; the lists are of blocks of queries for each block of keys."""
    q, k, v, g, sums, common = operands
    to_keys, to_values = results
    learned = [item.array for item in problem.added]
    kernel = _Kernel(problem, tiles, (*operands, *results, *learned), lists, "nm")
    line, kind, p = kernel.line, triton_type(problem.dtype), problem

    def write() -> None:
        line("program = tl.program_id(0)")
        line(f"n0 = (program % {kernel.counts('NBLOCK', p.keys)} * NBLOCK).to(tl.int32)")
        line(f"z = program // {kernel.counts('NBLOCK', p.keys)}")
        line(f"kh64 = tl.cast(z % {_text(p.key_heads)}, tl.int64)")
        line(f"kb64 = tl.cast(z // {_text(p.key_heads)}, tl.int64)")
        masks = kernel.begin_lanes()
        kernel.define_indices("n")
        line(f"row = tl.cast(n0 // {p.key_block}, tl.int64)")
        key, value = kernel.at(k, "kb64", "kh64", "n64", "0"), kernel.at(v, "kb64", "kh64", "n64", "0")
        transposed = kernel.masks("n", True)
        line(f"kn = {kernel.load(k, key, 'nt', 'dc', (transposed, masks['dc']))}")
        line(f"vn = {kernel.load(v, value, 'nt', 'vc', (transposed, masks['vc']))}")
        line(f"dk = tl.zeros([NBLOCK, {kernel.depth}], tl.float32)")
        line(f"dv = tl.zeros([NBLOCK, {kernel.values}], tl.float32)")
        line(f"group = {_text(p.heads)} // {_text(p.key_heads)}")
        line(f"for j in range(0, {_text(p.batch)} // {_text(p.key_batch)} * group):")
        with kernel.out.indented():
            line("h64 = kh64 * group + j % group")
            line("b64 = kb64 + j // group")
            line("h = h64.to(tl.int32)")
            line("b = b64.to(tl.int32)")
            for number, item in enumerate(lists):
                scores = kernel.scores("xyz"[number])
                scores.before("m")
                line(kernel.begin_list(item, "row", "m"))
                with kernel.out.indented():
                    kernel.this_tile("m")
                    kernel.define_indices("m")
                    _load_rows(kernel, masks, q, g, sums, common)
                    _gradients(kernel, scores, item.whole, True)
                    for added in p.added:
                        scores.add(added, "keep" if kernel.counted(item.whole, True) else "")
                    line(f"dv = tl.dot(p.to({kind}), gt, dv{kernel.precision})")
                    line(f"dk = tl.dot(ds.to({kind}), qt, dk{kernel.precision})")
                    kernel.next_tile(item, "m")
        for result, name, columns in ((to_keys, f"dk * {p.scale!r}", "dc"), (to_values, "dv", "vc")):
            first = kernel.at(result, "kb64", "kh64", "n64", "0")
            offset = f"nt * {_text(result.stride[2])} + {columns} * {_text(result.stride[3])}"
            mask = " & ".join(m for m in (transposed, masks[columns]) if m)
            given = f", mask={mask}" if mask else ""
            line(f"tl.store({first} + ({offset}), ({name}).to({triton_type(result.dtype)}){given})")

    grid = _grid(kernel, p.keys, tiles.keys, True)
    return kernel.written("flex_attention_keys", write, grid, aligned)


def _begin_queries(kernel: _Kernel) -> None:
    """Where a program of queries stands. Programs with the longest lists, usually the last, go first."""
    p = kernel.problem
    tiles = kernel.counts("MBLOCK", p.queries)
    kernel.line("program = tl.program_id(0)")
    kernel.line(f"m0 = (({tiles} - 1 - program % {tiles}) * MBLOCK).to(tl.int32)")
    kernel.line(f"z = program // {tiles}")
    kernel.line(f"h = (z % {_text(p.heads)}).to(tl.int32)")
    kernel.line(f"b = (z // {_text(p.heads)}).to(tl.int32)")
    kernel.line("h64 = tl.cast(h, tl.int64)")
    kernel.line("b64 = tl.cast(b, tl.int64)")
    kernel.line(f"kh64 = h64 // ({_text(p.heads)} // {_text(p.key_heads)})")
    kernel.line(f"kb64 = b64 // ({_text(p.batch)} // {_text(p.key_batch)})")
    kernel.line(f"row = tl.cast(m0 // {p.query_block}, tl.int64)")


def _gradients(kernel: _Kernel, scores: Scores, whole: bool, by_keys: bool) -> None:
    """Weights in `p`, and gradients of the scores before they were changed in `ds`."""
    problem, line = kernel.problem, kernel.line
    assert problem.gradient is not None
    line(f"s = {kernel.score_matmul()}")
    kernel.changed(scores, whole, by_keys)
    line(f"p = tl.exp2(x * {kernel.factor} - base)")
    operands = "gt, vt" if kernel.order == "mn" else "vn, tl.trans(gt)"
    line(f"dp = tl.dot({operands}{kernel.precision})")
    line("d = p * (dp - common)")
    scores.given(GRADIENT, "d")
    line(f"ds = {scores.value(problem.gradient)}")
    if kernel.counted(whole, by_keys):
        line("ds = tl.where(keep, ds, 0.0)")


def _load_rows(
    kernel: _Kernel, masks: dict[str, str], q: Array, g: Array, sums: Array, common: Array
) -> None:
    """Queries with all that belongs to them."""
    mask, rows = kernel.masks("m"), kernel.masks("m", True)
    given = f", mask={mask}, other=0.0" if mask else ""
    kernel.line(f"qt = {kernel.tile(q, 'm64', 'mt', 'dc', (rows, masks['dc']))}")
    kernel.line(f"gt = {kernel.tile(g, 'm64', 'mt', 'vc', (rows, masks['vc']))}")
    for name, array in (("base", sums), ("common", common)):
        first = kernel.at(array, "b64", "h64", "m64")
        kernel.line(f"{name} = tl.load({first} + ml * {_text(array.stride[2])}{given})")
    kernel.line('base = tl.where(base == float("-inf"), 0.0, base)')


def _shared(kernel: _Kernel, array: Array, start: str) -> str:
    """Where a tile of keys or values of a query's head begins."""
    return kernel.at(array, "kb64", "kh64", start, "0")


def _transposed(array: Array) -> Array:
    """A matrix with rows and columns exchanged."""
    return Array(array.name, array.dtype, (*array.stride[:2], array.stride[3], array.stride[2]))


def _store(kernel: _Kernel, array: Array, text: str, start: str, rows: str, columns: str, mask: str) -> None:
    masks = " & ".join(m for m in (kernel.masks("m"), mask) if m)
    given = f", mask={masks}" if masks else ""
    offset = f"{rows} * {_text(array.stride[2])} + {columns} * {_text(array.stride[3])}"
    kernel.line(f"tl.store({kernel.at(array, 'b64', 'h64', start, '0')} + ({offset}), {text}{given})")


def _store_row(kernel: _Kernel, array: Array, text: str) -> None:
    mask = kernel.masks("m")
    given = f", mask={mask}" if mask else ""
    first = kernel.at(array, "b64", "h64", "m64")
    kernel.line(f"tl.store({first} + ml * {_text(array.stride[2])}, {text}{given})")


def _grid(kernel: _Kernel, size: IndexLike, block: int, by_keys: bool) -> str:
    p = kernel.problem
    batch, heads = (p.key_batch, p.key_heads) if by_keys else (p.batch, p.heads)
    return f"({_text(size)} + {block - 1}) // {block} * {_text(batch)} * {_text(heads)}"


def _text(size: IndexLike) -> str:
    """A size in the kernel's text."""
    return str(size) if isinstance(size, int) else f"({python_text(size)})"
