"""What a fusion does to the memory that is in use at once."""

from __future__ import annotations

from collections.abc import Callable

from polyfuse.ir.graph import MAY_WAIT, Graph
from polyfuse.ir.nodes import ExternCall
from polyfuse.schedule.fusion.score import nbytes
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import IndexLike

_WAITING = 2
"""Times what the first unit passes on: as much may wait for the second one."""

_WORTH = 16
"""A fusion is worth more memory if it saves at least this part of the traffic."""


def keeps_more_alive(
    graph: Graph, first: Unit, second: Unit, hint: Callable[[IndexLike], int], launch_bytes: int
) -> bool:
    """Whether fusing a producer into its consumer holds much more memory and saves hardly any traffic.

    Unfused, what only the producer reads is freed before the consumer's result is allocated. The gradient of
    an embedding is the usual case: a table much larger than the rows that are added up for it.

    Args:
        launch_bytes: what the device moves while it starts the kernel that is saved.
    """

    def held(names: set[str]) -> int:
        """Bytes of what the graph can free: the caller holds constants, and inputs but for a backward's."""
        caller = ("constant",) if graph.kind == "backward" else ("constant", "input")
        return nbytes(graph, (name for name in names if graph.buffers[name].kind not in caller), hint)

    reads, writes = set(first.reads), set(first.writes)
    later_reads, later_writes = set(second.reads), set(second.writes)
    passed = writes & later_reads
    remaining = reads | later_writes | (later_reads | writes) - passed
    unfused = max(held(reads | writes), held(writes | later_reads | later_writes))
    saved = nbytes(graph, passed, hint) * 2 + launch_bytes
    return held(remaining) - unfused > MAY_WAIT and saved * _WORTH < nbytes(graph, remaining, hint)


def keeps_waiting(graph: Graph, first: Unit, second: Unit, hint: Callable[[IndexLike], int]) -> bool:
    """Whether results of calls that one of the units alone reads would wait for later calls, several times as
    much as the first passes on.

    A sum of many matmuls, such as the gradient of a weight that each step of a loop uses, is added up while
    they are made, or one kernel adds them when all are there.
    """
    bits = first.bits | second.bits
    alone: dict[str, int] = {}
    for name in {**first.reads, **second.reads}:
        writers = graph.uses.writers.get(name, ())
        made = len(writers) == 1 and isinstance(graph.nodes[writers[0]], ExternCall)
        if made and graph.buffers[name].kind == "temp":
            if all(bits >> reader & 1 for reader in graph.uses.readers[name]):
                alone[name] = writers[0]
    # the last one does not wait
    waiting = sorted(alone, key=lambda name: alone[name])[:-1]
    if len(waiting) <= _WAITING:
        return False
    passed = nbytes(graph, set(first.writes) & set(second.reads), hint)
    held = nbytes(graph, waiting, hint) - passed
    return held > max(MAY_WAIT, _WAITING * passed)
