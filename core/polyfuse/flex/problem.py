"""What a flexible attention call computes: the data that its kernels are written from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyfuse.ir.expr import Expr, loads, walk
from polyfuse.ir.statements import Statement, definition
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike, atoms, axis, of_atom

AXES = ("b", "h", "m", "n")
"""Batch, head, query and key: names of the axes of scores."""

SCORE, GRADIENT = "score", "gradient"
"""Names that stand for the score before it is changed, and for the gradient of what it was changed to, in
expressions: loads of nothing."""


@dataclass(frozen=True)
class Array:
    """A tensor argument: its name, element type and strides."""

    name: str
    dtype: DType
    stride: tuple[IndexLike, ...]


@dataclass(frozen=True)
class Blocks:
    """A list of blocks for each row of blocks: `count` of them at `index`.

    Attributes:
        count: by batch, head and row; int32.
        index: by batch, head, row and position in the list; int32.
        whole: whether nothing in them is masked.
    """

    count: Array
    index: Array
    whole: bool


@dataclass(frozen=True)
class Added:
    """What each score adds to the gradient of a tensor that its function reads.

    Attributes:
        array: the gradient, in f32.
        index: the element, dimension by dimension; i64.
        inside: whether there is such an element.
        value: what is added to it; f32.
    """

    array: Array
    index: tuple[Expr, ...]
    inside: Expr
    value: Expr


@dataclass(frozen=True)
class Problem:
    """One call.

    Attributes:
        batch, heads, queries, keys: sizes of the scores.
        key_batch, key_heads: batches and heads of keys and values, each shared by several of the queries.
        depth, values: length of a query or key, and of a value.
        mask_batch, mask_heads: sizes of the lists of blocks, 1 where they are shared.
        query_block, key_block: rows and columns of a block.
        dtype: of queries, keys, values and the result.
        scale: factor of the scores.
        exact: whether f32 may not be rounded for matrix instructions.
        is_fast: whether functions may be as exact as their results are stored, and no more.
        score: the changed score; mask: whether it counts, None for always; both over axes `b h m n` and
            `SCORE`.
        gradient: of the score before it was changed, over `GRADIENT` too; None in a forward.
        captured: other tensors that these read.
        added: what gradients of captured tensors consist of.
    """

    batch: IndexLike
    heads: IndexLike
    queries: IndexLike
    keys: IndexLike
    key_batch: IndexLike
    key_heads: IndexLike
    depth: int
    values: int
    mask_batch: IndexLike
    mask_heads: IndexLike
    query_block: int
    key_block: int
    dtype: DType
    scale: float
    exact: bool
    is_fast: bool
    score: Expr
    mask: Expr | None
    gradient: Expr | None
    captured: tuple[Array, ...]
    added: tuple[Added, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the score is neither changed nor read for anything else, so that its factor can wait."""
        if not self.scale > 0 or self.score.op != "load" or self.score.buffer != SCORE:
            return False
        others = (e for e in self.expressions if e is not self.score)
        return all(read.buffer != SCORE for read in loads(*others))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """All expressions."""
        more = (e for item in self.added for e in (*item.index, item.inside, item.value))
        return tuple(e for e in (self.score, self.mask, self.gradient, *more) if e is not None)


def statements(roots: Iterable[Expr]) -> tuple[tuple[Statement, ...], dict[Expr, str]]:
    """Expressions as statements in single assignment form, and the name of each value; what stands for
    scores is named, not loaded.
    """
    names: dict[Expr, str] = {}
    found: list[Statement] = []
    for expr in walk(*roots):
        if expr.op == "load" and expr.buffer in (SCORE, GRADIENT):
            names[expr] = expr.buffer
            continue
        names[expr] = f"e{len(found)}"
        args = tuple(names[a] for a in expr.args)
        found.append(definition(names[expr], expr, args))
    return tuple(found), names


def score_axes(sizes: Iterable[IndexLike]) -> tuple[Index, ...]:
    """The four axes of the scores: batch, head, query, key."""
    found = (axis(name, size) for name, size in zip(AXES, sizes, strict=True))
    return tuple(a for a in found if isinstance(a, Index))


@dataclass(frozen=True)
class Arguments:
    """What a kernel is called with: arrays, each once, then sizes by name."""

    arrays: tuple[Array, ...]
    sizes: dict[str, Index]


def arguments_of(problem: Problem, arrays: Iterable[Array], lists: Iterable[Blocks]) -> Arguments:
    """The arguments of a kernel that takes `arrays`, and the lists of blocks."""
    blocks = [array for item in lists for array in (item.count, item.index)]
    # one tensor may be captured under its name and be an operand too
    every = tuple(dict.fromkeys([*arrays, *blocks, *problem.captured]))
    sizes = (problem.batch, problem.heads, problem.queries, problem.keys, problem.key_batch)
    more = (problem.key_heads, problem.mask_batch, problem.mask_heads)
    strides = (step for array in every for step in array.stride)
    inside = (a for e in problem.expressions for a in _indices(e))
    return Arguments(every, symbols_of((*sizes, *more, *strides, *inside)))


def symbols_of(indices: Iterable[IndexLike]) -> dict[str, Index]:
    """Shape symbols of some sizes, each once, by name and in order."""
    found: dict[str, Index] = {}
    for index in indices:
        for atom in atoms(index):
            if atom.kind == "sym":
                found.setdefault(atom.name, of_atom(atom))
    return found


def _indices(root: Expr) -> Iterable[IndexLike]:
    """All indices in an expression, with the sizes of their axes."""
    for expr in walk(root):
        index = expr.index if expr.op in ("load", "index", "size") else 0
        if isinstance(index, Index):
            yield index
            yield from (atom.args[0] for atom in atoms(index) if atom.kind == "axis")
