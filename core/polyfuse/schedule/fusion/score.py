"""Which fusion first: candidates ranked by the memory traffic that they save and by distance."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polyfuse.ir.graph import Graph
from polyfuse.schedule.fusion.gemm_epilogues import has_gemm
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import IndexLike

Score = tuple[int, int, int]


def nbytes(graph: Graph, names: Iterable[str], hint: Callable[[IndexLike], int]) -> int:
    """Bytes of buffers; 0 for those that only eager operators read and write."""
    found = (graph.buffers[name] for name in names)
    return sum(max(hint(b.numel), 0) * b.dtype.itemsize for b in found if b.dtype is not None)


def shared_bytes(graph: Graph, first: Unit, second: Unit, hint: Callable[[IndexLike], int]) -> int:
    """Bytes of the buffers that both access: what a fusion may read or write once instead of twice."""
    return nbytes(graph, first.seen.keys() & second.seen.keys(), hint)


def touched_bytes(graph: Graph, unit: Unit, hint: Callable[[IndexLike], int]) -> int:
    """Bytes of all buffers that a unit accesses."""
    return nbytes(graph, unit.seen, hint)


def distance(first: Unit, second: Unit) -> int:
    """How many positions in program order separate the two."""
    return max(abs(first.first - second.last), abs(second.first - first.last))


def score(
    graph: Graph,
    first: Unit,
    second: Unit,
    hint: Callable[[IndexLike], int],
    epilogue_first: bool = True,
) -> Score:
    """Larger is better: epilogues of GEMMs first (or last), then units of one kind, then bytes, then
    distance.
    """
    shared = shared_bytes(graph, first, second, hint)
    if has_gemm(first) or has_gemm(second):
        return 2 if epilogue_first else -1, shared, -distance(first, second)
    alike = int(first.is_reduction == second.is_reduction and shared > 0)
    return alike, shared, -distance(first, second)
