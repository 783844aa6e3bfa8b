"""What collectives that were started and not waited for do to buffers: until the wait, what they write is
nobody's, and what they read stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polyfuse.ir.graph import reads
from polyfuse.ir.nodes import Collective, Node, Wait

IN_SHARED_MEMORY: Final = ("polyfuse_symmetric.exchange.", "polyfuse_symmetric.operand.")
"""How operators begin whose results lie in memory that processes map of each other: whoever reads them takes
the time of the message, and no program allocates it."""


def is_communication(node: object) -> bool:
    """Whether a node starts or ends communication with other processes."""
    return isinstance(node, (Collective, Wait))


class Running:
    """The collectives that run at one point of a list of nodes, which is walked in order."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.collectives: list[Collective] = []
        for node in nodes:
            self.pass_by(node)

    def pass_by(self, node: Node) -> None:
        """Go on to the point after a node."""
        if isinstance(node, Collective):
            self.collectives.append(node)
        elif isinstance(node, Wait):
            done = set(node.mutates)
            self.collectives = [c for c in self.collectives if not done.issuperset(c.writes())]

    def of(self, buffers: Iterable[str]) -> list[Collective]:
        """Those that write some of the buffers."""
        wanted = set(buffers)
        return [c for c in self.collectives if not wanted.isdisjoint(c.writes())]

    def written(self) -> set[str]:
        """Buffers that they write."""
        return {name for c in self.collectives for name in c.writes()}

    def touched(self) -> set[str]:
        """Buffers that they read or write."""
        return self.written() | {name for c in self.collectives for name in reads(c)}

    def fault(self, node: Node) -> str:
        """What is wrong with a node at this point; empty if nothing is."""
        if isinstance(node, Collective) and not node.group:
            return "it names no group of processes"
        if isinstance(node, Wait):
            missing = [n for c in self.of(node.mutates) for n in reads(c) if n not in reads(node)]
            if missing:
                return f"it does not hold {missing[0]!r}, which the collective that it ends uses until then"
            return ""
        early = self.written().intersection(reads(node))
        if early:
            return f"it reads {min(early)!r}, which a collective writes that was not waited for"
        late = self.touched().intersection(node.writes())
        if late:
            return f"it writes {min(late)!r}, which a collective uses that was not waited for"
        return ""


def never_awaited(nodes: Iterable[Node]) -> set[str]:
    """Buffers that collectives use which nothing in a list of nodes waits for: their memory is nobody else's
    until the program ends.
    """
    return Running(nodes).touched()
