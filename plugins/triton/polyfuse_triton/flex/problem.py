"""What a flexible attention call computes: the data that its kernels are written from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyfuse.ir.expr import Expr, loads, walk
from polyfuse.ir.statements import Statement, definition
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike, atoms, of_atom

__all__ = ["GRADIENT", "SCORE", "Added", "Array", "Blocks", "Problem", "statements", "symbols_of"]

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
        index: by batch, head, row and place in the list; int32.
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
        scale: factor of the products.
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


def symbols_of(indices: Iterable[IndexLike]) -> dict[str, Index]:
    """Shape symbols of some sizes, each once, by name and in order."""
    found: dict[str, Index] = {}
    for index in indices:
        for atom in atoms(index):
            if atom.kind == "sym":
                found.setdefault(atom.name, of_atom(atom))
    return found
