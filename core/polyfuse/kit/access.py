"""Loads and stores as code generators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.ir.statements import Load, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike


@dataclass(frozen=True)
class Access:
    """One load or store of an argument or a row buffer.

    Attributes:
        section: number of the section it stands in.
        looped: whether that section is looped.
        dtype: element type of the buffer.
        strides: example step in elements along each axis that the index depends on; None where the step
            differs from point to point.
    """

    stmt: Load | Store
    section: int
    looped: bool
    dtype: DType
    strides: Mapping[str, int | None]

    @property
    def buffer(self) -> str:
        """The argument or row buffer."""
        return self.stmt.buffer

    @property
    def index(self) -> IndexLike:
        """In elements."""
        return self.stmt.index

    @property
    def indirect(self) -> tuple[str, ...]:
        """Names of the values that take part in the index."""
        return self.stmt.indirect

    @property
    def is_store(self) -> bool:
        """Whether memory is written."""
        return isinstance(self.stmt, Store)

    @property
    def mode(self) -> str:
        """``"load"``, or the mode of the store."""
        return self.stmt.mode if isinstance(self.stmt, Store) else "load"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def is_contiguous(self, axis: str) -> bool:
        """Whether neighbours along an axis are neighbours in memory."""
        return self.strides.get(axis) == 1
