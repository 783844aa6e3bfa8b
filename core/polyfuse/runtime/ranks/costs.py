"""How long collectives take in a world of processes: a table that was measured there, or what a bandwidth and
a latency say.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
"""The kinds of collectives that a table knows."""

_LONGEST: Final = 3600.0
_MOST_SIZES: Final = 64


def kind_of(op: str) -> str:
    """The kind of a collective, by the name of an operator or of a process group's method."""
    short = op.rpartition("::")[2].removeprefix("_c10d_functional.").replace("_", "")
    if "alltoall" in short:
        return "all_to_all"
    if "reducescatter" in short:
        return "reduce_scatter"
    if "gather" in short:
        return "all_gather"
    if "reduce" in short:
        return "all_reduce"
    return "broadcast" if "broadcast" in short or "scatter" in short else "send"


def _rounds(kind: str, ranks: int) -> float:
    """How often the bytes of a collective pass a process's link, in a ring."""
    share = (ranks - 1) / ranks if ranks > 1 else 0.0
    # a sum goes around twice: to be made, and to be known
    return {"all_reduce": 2 * share, "broadcast": 1.0, "send": 1.0}.get(kind, share)


def _steps(ranks: int) -> float:
    """After how many messages, one after another, all processes have heard of one, in a tree."""
    return max(1.0, math.log2(ranks)) if ranks > 1 else 1.0


@dataclass(frozen=True)
class CollectiveCosts:
    """Seconds of collectives by kind and size.

    Attributes:
        library: what carries them out, such as `gloo`.
        device: what it was measured on (`Device.facts`); empty: not measured.
        ranks: processes that took part.
        on_host: whether all were on one host.
        seconds: for each kind of `KINDS`, pairs of bytes and seconds, the smallest first. The bytes are those
            of the larger of what one process gives and gets.
        cpu: CPU seconds of one process in the same, where that was measured.
        further: seconds that each further message takes which a small matmul waits for; 0: not measured.
    """

    library: str
    device: str
    ranks: int
    on_host: bool
    seconds: Mapping[str, tuple[tuple[int, float], ...]]
    cpu: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    further: float = 0.0

    @classmethod
    def given(cls, bandwidth: float, latency: float = 0.0) -> CollectiveCosts:
        """Costs of a network of so many bytes a second in each direction of a link, and seconds a message."""
        sizes = (1, 1 << 40)
        seconds = {
            kind: tuple((n, latency + _rounds(kind, 2) * n / bandwidth) for n in sizes) for kind in KINDS
        }
        return cls("", "", 2, False, seconds)

    def of(self, kind: str, nbytes: float, ranks: int = 0) -> float:
        """Seconds of one collective: between two sizes on a line, above the largest at its rate.

        For other numbers of ranks, the time of the smallest size grows with the depth of a tree of
        processes, and the rest as the bytes that pass a link of a ring.

        Args:
            kind: one of `KINDS`.
            nbytes: as in `seconds`.
            ranks: of the group; 0: as many as the table is of.
        """
        rows = self.seconds.get(kind) or self.seconds["all_reduce"]
        return self._grown(rows, kind, nbytes, ranks or self.ranks)

    def cpu_of(self, kind: str, nbytes: float, ranks: int = 0) -> float:
        """CPU seconds of one process in a collective, as `of`; 0 where they were not measured."""
        rows = self.cpu.get(kind)
        return self._grown(rows, kind, nbytes, ranks or self.ranks) if rows else 0.0

    def _grown(self, rows: Sequence[tuple[int, float]], kind: str, nbytes: float, ranks: int) -> float:
        whole, least = _between(rows, nbytes), rows[0][1]
        if ranks == self.ranks:
            return whole
        if ranks < 2:
            return least
        grown = _rounds(kind, ranks) / _rounds(kind, max(2, self.ranks))
        return least * _steps(ranks) / _steps(self.ranks) + max(0.0, whole - least) * grown

    def plain(self) -> dict[str, Any]:
        """It, for JSON."""
        rows, cpu = (
            {kind: [list(row) for row in found] for kind, found in table.items()}
            for table in (self.seconds, self.cpu)
        )
        return {
            "library": self.library,
            "device": self.device,
            "ranks": self.ranks,
            "on_host": self.on_host,
            "seconds": rows,
            "cpu": cpu,
            "further": self.further,
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> CollectiveCosts | None:
        """What `plain` made of it; None for anything that no measurement can have given."""
        try:
            seconds, cpu = (
                {kind: tuple((int(n), float(s)) for n, s in table[kind]) for kind in KINDS if kind in table}
                for table in (content["seconds"], content.get("cpu", {}))
            )
            found = cls(
                str(content["library"]),
                str(content["device"]),
                int(content["ranks"]),
                bool(content["on_host"]),
                seconds,
                cpu,
                float(content.get("further", 0.0)),
            )
        except (KeyError, TypeError, ValueError):
            return None
        whole = found.ranks > 1 and len(seconds) == len(KINDS) and 0 <= found.further < _LONGEST
        return found if whole and all(map(_is_sound, (*seconds.values(), *cpu.values()))) else None


def _is_sound(rows: Sequence[tuple[int, float]]) -> bool:
    sizes = [n for n, _ in rows]
    growing = all(a < b for a, b in pairwise(sizes))
    return 0 < len(rows) <= _MOST_SIZES and growing and all(n > 0 and 0 <= s < _LONGEST for n, s in rows)


def _between(rows: Sequence[tuple[int, float]], nbytes: float) -> float:
    position = bisect_left(rows, (nbytes, -1.0))
    if position == 0:
        return rows[0][1]
    if position == len(rows):
        (n, s), least = rows[-1], rows[0][1]
        return s + max(0.0, s - least) * (nbytes - n) / n
    (n0, s0), (n1, s1) = rows[position - 1], rows[position]
    return s0 + (s1 - s0) * (nbytes - n0) / (n1 - n0)


_KNOWN: dict[tuple[str, str], tuple[CollectiveCosts, ...]] = {}
"""The tables of this process, by library and device: facts of the machine, as those of devices are."""


def use_costs(tables: Iterable[CollectiveCosts]) -> None:
    """Have these tables decide from now on, in place of others of the same library, device and ranks."""
    for table in tables:
        key = table.library, table.device
        others = (t for t in _KNOWN.get(key, ()) if (t.ranks, t.on_host) != (table.ranks, table.on_host))
        _KNOWN[key] = (*others, table)


def any_costs() -> bool:
    """Whether anything was measured."""
    return bool(_KNOWN)


def forget_costs() -> None:
    """Drop all tables of this process."""
    _KNOWN.clear()


@contextmanager
def restored_costs() -> Iterator[None]:
    """Have the tables decide afterwards that decide now, whatever is used meanwhile."""
    before = dict(_KNOWN)
    try:
        yield
    finally:
        _KNOWN.clear()
        _KNOWN.update(before)


def known_costs(library: str, device: str) -> tuple[CollectiveCosts, ...]:
    """The tables of a library on a device."""
    return _KNOWN.get((library, device), ())


def costs_of(library: str, device: str, ranks: int, on_host: bool) -> CollectiveCosts | None:
    """The table that says most of a group: of its number of processes, else of the nearest one, where its
    processes are as near to each other; None: nothing was measured.
    """
    found = [table for table in known_costs(library, device) if table.on_host == on_host]
    return nearest(found, ranks) if found else None


def nearest(tables: Sequence[CollectiveCosts], ranks: int) -> CollectiveCosts:
    """Of some tables, at least one, that of the number of ranks that is nearest by its ratio."""
    return min(tables, key=lambda t: (abs(math.log(t.ranks / max(1, ranks))), t.ranks))
