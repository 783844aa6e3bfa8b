"""A call of attention with few queries: the data that its kernel is written from."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.types import DType


@dataclass(frozen=True)
class Tiles:
    """How a kernel is run.

    Attributes:
        parts: into how many the keys are divided, each of which has programs of its own.
        keys: of a tile.
        warps, stages: for Triton's compiler.
    """

    parts: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class FewQueries:
    """One call.

    Attributes:
        batch, heads, queries, keys: sizes of the scores.
        key_heads: heads of keys and values, each shared by several of the queries.
        depth, values: length of a query or key, and of a value.
        dtype: of queries, keys and values.
        scale: factor of the scores.
        query, key, value, out: strides of these, by batch, head, row and column.
        bias_dtype, bias: type and strides of what is added to scores; None and empty: nothing.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    key_heads: int
    depth: int
    values: int
    dtype: DType
    scale: float
    query: tuple[int, ...] = ()
    key: tuple[int, ...] = ()
    value: tuple[int, ...] = ()
    out: tuple[int, ...] = ()
    bias_dtype: DType | None = None
    bias: tuple[int, ...] = ()

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.key_heads

    @property
    def rows(self) -> int:
        """Rows of queries that meet the same keys."""
        return self.group * self.queries

    @property
    def pairs(self) -> int:
        """Heads of keys of all batches."""
        return self.batch * self.key_heads

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return self.pairs * self.keys * (self.depth + self.values) * self.dtype.itemsize

    @property
    def skips(self) -> bool:
        """Whether all rows of a program have the same bias, so that keys at either end of its part which none
        of them sees are not read.
        """
        return self.bias_dtype is not None and not self.bias[1] and not (self.bias[2] and self.queries > 1)
