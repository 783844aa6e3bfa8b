"""Processes agree on the collectives of a graph before it runs for the first time.

Each process writes what it is about to do in a group to the store of that group, under the number of
collectives that it has started there so far, and reads what the others wrote. Two processes that are at the
same number meet in their next collective, so that what they wrote must match; others are not compared. This
takes no part in the group's own communication: a process that compiles a graph alone, since only its sizes
changed, disturbs nobody, and waits no longer than its time limit.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from polyfuse.base.errors import RankError
from polyfuse.base.log import get_logger
from polyfuse.base.text import shorten
from polyfuse.runtime.ranks.collectives import CollectiveRow, difference, digest_of
from polyfuse.torch_compat.groups import Group, SharedStore, group_names, group_of, this_rank

_log = get_logger("ranks")

_PAUSES: Final = (0.001, 0.05)
"""Seconds between two looks into the store: at first, and at most."""

_FIRST: Final = 10
"""How many times as long a rank is waited for that was never met."""

_DONE: Final = "done"
_OFF: Final = "set agreement_seconds=0 if they are meant to differ"

_lock = threading.Lock()
_depth = 0
_met: set[int] = set()
"""Ranks that were waited for once: at first they may still import what this rank has."""

_covered: dict[tuple[str, int], int] = {}
"""For a group and a rank, the number of collectives up to which that rank runs one graph of its own."""


@dataclass(frozen=True)
class Agreement:
    """What is compared besides collectives, and for how long others are waited for.

    Attributes:
        facts: options, versions and the like, by names for people.
        seconds: to wait for ranks that are not known to be compiling; 0: nothing is compared.
        partial: whether the graph ends where the function goes on, so that more may follow in another one.
    """

    facts: Mapping[str, str]
    seconds: float
    partial: bool = False

    def around(self, rows: Sequence[CollectiveRow], name: str, run: Callable[[], Any]) -> Any:
        """Run a graph for the first time, after the ranks of its groups have agreed.

        Args:
            rows: its collectives in their order.
            name: of the graph.

        Raises:
            RankError: another rank would do something else, or has failed.
        """
        rank = this_rank()
        if not self.seconds or not rows or rank < 0:
            return run()
        meetings = list(self._rendezvous(rows, name, rank))
        try:
            for meeting in meetings:
                meeting.announce()
            for meeting in meetings:
                meeting.agree()
        except RankError as error:
            tell_failure(error)
            raise
        try:
            result = run()
        except Exception as error:
            for meeting in meetings:
                better = meeting.failure()
                if better is not None:
                    raise better from error
            raise
        for meeting in meetings:
            meeting.leave()
        return result

    def _rendezvous(self, rows: Sequence[CollectiveRow], name: str, rank: int) -> Iterator[_Rendezvous]:
        for group_name in dict.fromkeys(row.group for row in rows):
            group = group_of(group_name)
            if group is None or group.store is None or len(group.ranks) < 2:
                continue
            position = group.position()
            if position >= 0:
                own = [row for row in rows if row.group == group_name]
                yield _Rendezvous(self, group, group.store, position, own, name, rank)


class _Rendezvous:
    """The ranks of one group before their next collectives there."""

    def __init__(
        self,
        agreement: Agreement,
        group: Group,
        store: SharedStore,
        position: int,
        rows: Sequence[CollectiveRow],
        name: str,
        rank: int,
    ) -> None:
        self._agreement, self._group, self._store = agreement, group, store
        self._position, self._rows, self._name, self._rank = position, rows, name, rank

    def announce(self) -> None:
        """Write what this rank does."""
        self._quietly(self._write)

    def agree(self) -> None:
        """Compare it with what the others do as they come."""
        try:
            self._compare_all()
        except RankError:
            raise
        except Exception as error:  # of the store: a comparison that cannot be made stops no program
            _log.info("ranks are not compared: %s", error)

    def leave(self) -> None:
        """The graph has run: whoever comes to this collective later meets nobody."""
        self._quietly(lambda: self._store.put(self._key(self._rank), _DONE))

    def failure(self) -> RankError | None:
        """What another rank says about itself after the graph failed here."""
        found: list[RankError | None] = [None]

        def look() -> None:
            for rank in self._others():
                found[0] = found[0] or self._failed(rank, at_least=True)

        self._quietly(look)
        return found[0]

    def _others(self) -> list[int]:
        return [rank for rank in self._group.ranks if rank != self._rank]

    def _key(self, rank: int) -> str:
        return f"{self._group.name}/{self._position}/{rank}"

    def _write(self) -> None:
        plain = [row.plain() for row in self._rows]
        about = {
            "digest": digest_of(self._rows),
            "facts": dict(self._agreement.facts),
            "partial": self._agreement.partial,
            "count": len(self._rows),
            "graph": self._name,
        }
        self._store.put(f"{self._key(self._rank)}/rows", json.dumps(plain))
        self._store.put(self._key(self._rank), json.dumps(about))

    def _compare_all(self) -> None:
        missing = [r for r in self._others() if _covered.get((self._group.name, r), -1) <= self._position]
        begin, pause = time.monotonic(), _PAUSES[0]
        while missing:
            for rank in list(missing):
                text = self._store.find(self._key(rank))
                if text is not None:
                    missing.remove(rank)
                    _met.add(rank)
                    if text != _DONE:
                        self._compare(rank, json.loads(text))
                elif (error := self._failed(rank)) is not None:
                    raise error
            waited = time.monotonic() - begin
            patience = self._agreement.seconds
            if not _met.issuperset(missing):
                patience *= _FIRST
            if missing and waited > patience:
                busy = waited < self._store.patience and any(_is_compiling(rank) for rank in missing)
                if not busy:
                    _log.info("graph %s runs unseen by ranks %s", self._name, missing)
                    _met.update(missing)
                    return
            if missing:
                time.sleep(pause)
                pause = min(_PAUSES[1], pause * 1.5)

    def _compare(self, rank: int, about: Mapping[str, Any]) -> None:
        first, second = sorted((rank, self._rank))
        mine = dict(self._agreement.facts)
        if about["digest"] != digest_of(self._rows):
            text = self._store.find(f"{self._key(rank)}/rows") or "[]"
            theirs = [CollectiveRow(**row) for row in json.loads(text)]
            found = difference(self._rows, theirs)
            if found is not None and not self._may_end(found, about):
                raise self._disagreement(rank, about["graph"], found)
            if len(theirs) > len(self._rows):
                _covered[self._group.name, rank] = self._position + len(theirs)
        for name in dict.fromkeys((*mine, *about["facts"])):
            values = {self._rank: mine.get(name, "none"), rank: about["facts"].get(name, "none")}
            if values[first] != values[second]:
                raise RankError(
                    f"ranks {first} and {second} compiled with different {name}: {values[first]} on rank"
                    f" {first}, {values[second]} on rank {second}",
                    f"give all ranks the same, or {_OFF}",
                )

    def _may_end(
        self, found: tuple[int, CollectiveRow | None, CollectiveRow | None], about: Mapping[str, Any]
    ) -> bool:
        """Whether one of two graphs just ends earlier, and another graph follows it."""
        _, own, other = found
        return (own is None and self._agreement.partial) or (other is None and bool(about["partial"]))

    def _disagreement(
        self, rank: int, graph: str, found: tuple[int, CollectiveRow | None, CollectiveRow | None]
    ) -> RankError:
        position, own, other = found
        rows = {self._rank: (self._name, own), rank: (graph, other)}
        first, second = sorted(rows)
        sentences = [
            f"rank {r} runs " + (f"no collective more in {name}" if row is None else f"{row} in {name}")
            for r, (name, row) in ((r, rows[r]) for r in (first, second))
        ]
        return RankError(
            f"ranks {first} and {second} do not agree on collective {position + 1} of a graph in the group of"
            f" ranks {', '.join(map(str, self._group.ranks))}: {sentences[0]}, {sentences[1]}",
            f"make both run the same collectives in the same order, or {_OFF}",
        )

    def _failed(self, rank: int, at_least: bool = False) -> RankError | None:
        """The error of a rank that failed at this collective, or after it."""
        world = group_of()
        if world is None or world.store is None:
            return None
        text = world.store.find(f"failed/{rank}")
        if text is None:
            return None
        failure = json.loads(text)
        position = failure["positions"].get(self._group.name, -1)
        if position != self._position and not (at_least and position > self._position):
            return None
        return RankError(
            f"rank {rank} failed where rank {self._rank} needs it for graph {self._name}: {failure['error']}",
            f"mend that error of rank {rank}",
        )

    def _quietly(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            _log.info("the ranks' store cannot be used: %s", error)


@contextmanager
def compiling_for_others(tell: bool = True) -> Iterator[None]:
    """Let other ranks know that this one compiles, so that they wait for it, and that it failed if it did and
    `tell` is set.
    """
    begin_compiling()
    try:
        yield
    except Exception as error:
        if tell:
            tell_failure(error)
        raise
    finally:
        end_compiling()


def begin_compiling(*_: object) -> None:
    """Let other ranks know that this one compiles; each call has its `end_compiling`."""
    global _depth
    with _lock:
        _depth += 1
        outermost = _depth == 1
    if outermost:
        _note(this_rank(), "1")


def end_compiling(*_: object) -> None:
    """Let other ranks know that this one does not compile any more."""
    global _depth
    with _lock:
        _depth = max(0, _depth - 1)
        last = not _depth
    if last:
        _note(this_rank(), "0")


def tell_failure(error: BaseException) -> None:
    """Let ranks that wait for this one know that it will not come."""
    rank, world = this_rank(), group_of()
    if rank < 0 or world is None or world.store is None:
        return
    try:
        groups = [group for name in group_names() if (group := group_of(name)) is not None]
        positions = {group.name: group.position() for group in groups}
        text = shorten(f"{type(error).__name__}: {error}", 600)
        world.store.put(f"failed/{rank}", json.dumps({"positions": positions, "error": text}))
    except Exception as trouble:
        _log.info("a failure is not reported to other ranks: %s", trouble)


def _note(rank: int, text: str) -> None:
    world = group_of() if rank >= 0 else None
    if world is None or world.store is None:
        return
    try:
        world.store.put(f"compiling/{rank}", text)
    except Exception as error:
        _log.info("other ranks do not know that this one compiles: %s", error)


def _is_compiling(rank: int) -> bool:
    world = group_of()
    return world is not None and world.store is not None and world.store.find(f"compiling/{rank}") == "1"
