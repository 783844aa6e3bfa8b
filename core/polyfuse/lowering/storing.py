"""Whether a lazy value is better stored than computed wherever it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from polyfuse.ir.expr import Expr, loads, walk
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.lowering.value import TensorValue
from polyfuse.symbolic import free_axes

_DIVISIONS: Final = frozenset(("div", "sqrt", "rsqrt", "reciprocal"))
"""Operations that take as long as several others, yet are no function."""
_CHEAPER: Final = 4
"""How many of them take as long as a slow operation."""
_SLOW: Final = frozenset(name for name, row in SCALAR_OPS.items() if row.slow)
_HARD_LIMIT: Final = 4
"""How many times the limits for shared values a value with one reader may reach before it is stored."""
_FULL_READS: Final = 2
"""Most tensors as large as a shared value that it may be made of: with more, readers in different kernels
together read more than storing the value costs. (A chain of residual sums would otherwise read all of its
terms everywhere.)"""


@dataclass(frozen=True)
class Limits:
    """Of values that are computed where they are read.

    Attributes:
        ops, reads: most operations and reads of one with several readers.
        recomputed: points at which readers may compute it again where they broadcast it; 0: any number.
    """

    ops: int
    reads: int
    recomputed: int


class Costs:
    """What expressions take: found once for each."""

    def __init__(self) -> None:
        self._found: dict[Expr, tuple[int, int, bool]] = {}

    def of(self, body: Expr) -> tuple[int, int, bool]:
        """(operations, reads, whether one of them is slow) of a body, each distinct expression counted
        once."""
        found = self._found.get(body)
        if found is None:
            ops = reads = 0
            slow = False
            for expr in walk(body):
                if expr.op == "load":
                    reads += 1
                elif expr.op not in ("const", "index", "size", "cast"):
                    ops += 1
                    slow = slow or expr.op in _SLOW
            found = self._found[body] = (ops, reads, slow)
        return found

    def reason_to_store(
        self,
        value: TensorValue,
        limits: Limits,
        readers: int,
        recomputed: int = 0,
        across: bool = False,
        meet: Callable[[], bool] | None = None,
    ) -> str:
        """Why a lazy value with so many readers, which compute it again at so many points, is better stored;
        empty if it is better computed where it is read. `meet` says whether its readers are for one value.
        """
        assert value.body is not None
        ops, reads, slow = self.of(value.body)
        most_ops, most_reads, allowed = limits.ops, limits.reads, limits.recomputed
        if readers > 1 and reads:
            if slow and (allowed or meet is None or not meet()):
                return f"costly and read {readers} times"
            if reads > most_reads or ops > most_ops:
                return f"{ops} operations on {reads} reads, read {readers} times"
            if reads > _FULL_READS and _full_reads(value) > _FULL_READS:
                return f"made of more than {_FULL_READS} tensors of its size, read {readers} times"
        if 0 < allowed < recomputed:
            if slow:
                return "costly and broadcast"
            if _CHEAPER * allowed < recomputed and any(e.op in _DIVISIONS for e in walk(value.body)):
                return "divides, and is broadcast"
            if _CHEAPER * allowed < recomputed and _is_gathered(value, across):
                return "gathered, and broadcast"
        if ops > _HARD_LIMIT * most_ops or reads > _HARD_LIMIT * most_reads:
            return f"{ops} operations on {reads} reads are enough for one expression"
        return ""


def _is_gathered(value: TensorValue, across: bool) -> bool:
    """Whether neighbours of a lazy value are read where data say, each for itself, or, where its readers go
    `across` its memory, whether anything of it is."""
    assert value.body is not None
    along = next((f"i{d}" for d, n in reversed(list(enumerate(value.size))) if n != 1), "")
    positions = (p for read in loads(value.body) for p in read.indirect)
    return any(across or _varies(p, along) for p in positions)


def _varies(value: Expr, along: str) -> bool:
    """Whether an expression takes other values along an axis."""
    return any(along in free_axes(e.index) for e in walk(value) if e.op in ("load", "index"))


def _full_reads(value: TensorValue) -> int:
    """Reads of a lazy value that touch an element for each of its own."""
    assert value.body is not None
    wide = sum(1 for n in value.size if n != 1)
    return sum(1 for e in loads(value.body) if e.indirect or len(free_axes(e.index)) >= wide)
