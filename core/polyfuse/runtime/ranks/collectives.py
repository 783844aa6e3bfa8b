"""The collectives of a graph in their order, and how those of two processes differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from polyfuse.base.digest import digest

_SHOWN = 160

_SIZES_DIFFER = frozenset({"all_to_all_single", "shard_dim_alltoall"})
"""Collectives in which each process may send another number of elements."""


@dataclass(frozen=True)
class CollectiveRow:
    """One collective of a graph.

    Attributes:
        op: as ``all_reduce``.
        group: name of the group of processes.
        detail: further arguments that all processes must give alike, as ``sum``.
        dtype: of what is sent.
        numel: elements that are sent; None where that varies between calls or processes.
        source: line of the model that it comes from; empty where that is not known.
    """

    op: str
    group: str
    detail: str
    dtype: str
    numel: int | None
    source: str

    def matches(self, other: CollectiveRow) -> bool:
        """Whether two processes may take part in one collective with these."""
        if (self.op, self.detail, self.dtype) != (other.op, other.detail, other.dtype):
            return False
        return self.numel == other.numel or None in (self.numel, other.numel)

    def __str__(self) -> str:
        sent = self.dtype if self.numel is None else f"{self.numel} x {self.dtype}"
        source = self.source if len(self.source) <= _SHOWN else f"{self.source[:_SHOWN]}…"
        location = f" at {source}" if source else ""
        return f"{self.op}({', '.join(part for part in (self.detail, sent) if part)}){location}"

    def plain(self) -> dict[str, Any]:
        """It, for JSON."""
        return asdict(self)


def row_of(
    op: str, group: str, arguments: Sequence[Any], dtype: str, numel: int | None, source: str
) -> CollectiveRow:
    """The row of a call.

    Args:
        op: name of the operator, functional or in place, with or without its overload.
        arguments: all behind what is sent; the last one is the group.
    """
    short = op.split(".")[1].removesuffix("_") if "." in op else op.removesuffix("_")
    varies = short in _SIZES_DIFFER
    known = [str(a) for a in arguments[:-1] if isinstance(a, (int, str)) and not isinstance(a, bool)]
    return CollectiveRow(
        short, group, "" if varies else ", ".join(known), dtype, None if varies else numel, source
    )


def digest_of(rows: Sequence[CollectiveRow]) -> str:
    """Equal for processes that surely agree: it knows nothing of sources, which may lie in other folders."""
    return digest(*(f"{r.op} {r.detail} {r.dtype} {r.numel}" for r in rows))


def difference(
    mine: Sequence[CollectiveRow], theirs: Sequence[CollectiveRow]
) -> tuple[int, CollectiveRow | None, CollectiveRow | None] | None:
    """The first position at which two processes differ, with what each does there; None if there is none."""
    for position in range(max(len(mine), len(theirs))):
        own = mine[position] if position < len(mine) else None
        other = theirs[position] if position < len(theirs) else None
        if own is None or other is None or not own.matches(other):
            return position, own, other
    return None
