"""Which rank makes something that all need, where not all see one cache folder: the one that claims it first
in the store of the process group. Those with other cache folders wait until it says that it is done.

No collective is used: ranks that need other things, or come later, or never, disturb nobody.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from polyfuse.base.errors import RankError
from polyfuse.base.log import get_logger
from polyfuse.base.text import shorten
from polyfuse.torch_compat.groups import SharedStore

_log = get_logger("ranks")

_PAUSES: Final = (0.002, 0.05)
"""Seconds between two looks into the store: at first, and at most."""

_BEAT: Final = 1.0
"""Seconds between two signs of life of a rank that makes something."""

_SILENT: Final = 60.0
"""Seconds without one after which a rank is not waited for."""


class Claim:
    """What a rank makes, and those that wait for it and may help.

    Args:
        name: in the store.
    """

    def __init__(self, store: SharedStore, name: str) -> None:
        self._store, self._name = store, name
        self._turns: dict[int, int] = {}
        self._beats: dict[int, tuple[int, float]] = {}
        self._ranks: dict[int, int] = {}

    def helpers(self) -> list[tuple[int, str]]:
        """The numbers of those that have come so far, and their hosts."""
        found: list[tuple[int, str]] = []
        for number in range(1, self._store.add(f"{self._name}/helpers", 0) + 1):
            text = self._store.find(f"{self._name}/helper/{number}")
            if text is not None:
                about = json.loads(text)
                self._ranks[number] = about["rank"]
                found.append((number, about["host"]))
        return found

    def ask(self, helper: int, content: bytes) -> int:
        """Send a request to a helper, and return its number."""
        turn = self._turns[helper] = self._turns.get(helper, 0) + 1
        self._store.put(f"{self._name}/asked/{helper}/{turn}", content)
        return turn

    def answer(self, helper: int, turn: int) -> bytes | None:
        """What a helper answered to a request; None while it did not."""
        return self._store.find_bytes(f"{self._name}/answered/{helper}/{turn}")

    def is_alive(self, helper: int) -> bool:
        """Whether a helper was heard of lately."""
        beats, now = self._store.add(f"alive/{self._ranks[helper]}", 0), time.monotonic()
        last, heard = self._beats.get(helper, (-1, now))
        if beats != last:
            self._beats[helper] = beats, now
            return True
        return now - heard < _SILENT


Help = Callable[[bytes], bytes]
"""Answers a request of the rank that is waited for."""


class Claims:
    """The claims of one rank.

    Args:
        store: of the world.
        rank: of this process.
        ranks: how many there are.
        folder_id: the same for ranks that share a cache folder, and no others.
        machine: what only ranks have that can use each other's results.
        assumed: whether ranks that have not named their folder are taken to have another one.
    """

    def __init__(
        self, store: SharedStore, rank: int, ranks: int, folder_id: str, machine: str, assumed: bool
    ) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._folder_id, self._machine, self._assumed = folder_id, machine, assumed
        if store.claim("folders/first", folder_id) != folder_id:
            store.put("folders/several", "1")
        if store.add(f"folders/of/{rank}", 1) == 1:
            store.add("folders/count", 1)

    def needed(self) -> bool | None:
        """Whether ranks have several cache folders; None: they are not, and never will be."""
        if self._store.find("folders/several") is not None:
            return True
        return None if self._store.add("folders/count", 0) >= self._ranks else self._assumed

    @contextmanager
    def making(
        self, key: str, seconds: float, finish: Callable[[], object], help: tuple[str, Help] | None = None
    ) -> Iterator[Claim | None]:
        """Make what is under a key inside, after waiting for a rank of another folder that does so. A store
        that does not answer stops nobody.

        Args:
            seconds: to wait at most.
            finish: called before others read that it is done.
            help: the host of this rank, and what it does for a rank that it waits for.

        Yields:
            the claim of this rank; None where another rank has made it, or may have.

        Raises:
            RankError: another rank failed to.
        """
        name = f"claims/{self._machine}/{key}"
        try:
            elsewhere = self._claimed_elsewhere(name, seconds, help)
        except RankError:
            raise
        except Exception as error:
            _log.info("the ranks' store cannot be used: %s", error)
            elsewhere = True
        if elsewhere:
            yield None
            return
        try:
            with self._beating():
                yield Claim(self._store, name)
                finish()
        except BaseException as error:
            # a user who interrupts one rank leaves the work to the others
            failed = isinstance(error, Exception)
            self._tell(name, shorten(f"{type(error).__name__}: {error}", 600) if failed else "")
            raise
        self._tell(name, "")

    def _tell(self, name: str, error: str) -> None:
        try:
            self._store.put(f"{name}/done", json.dumps({"error": error}))
        except Exception as trouble:
            _log.info("other ranks do not know what became of %s: %s", name, trouble)

    def _claimed_elsewhere(self, name: str, seconds: float, help: tuple[str, Help] | None) -> bool:
        """Claim something, or wait for a rank of another cache folder that did before."""
        mine = json.dumps({"rank": self._rank, "folder": self._folder_id})
        owner = json.loads(self._store.claim(name, mine))
        if owner["rank"] == self._rank or owner["folder"] == self._folder_id:
            return False  # a rank of this folder has its lock: the owner is done with it
        with self._beating() if help is not None else nullcontext():
            self._wait(name, owner["rank"], seconds, help)
        return True

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Give signs of life meanwhile, from a thread of their own."""
        end = threading.Event()

        def beat() -> None:
            while not end.wait(_BEAT):
                try:
                    self._store.add(f"alive/{self._rank}", 1)
                except Exception:  # the store is gone, and with it whoever would read this
                    return

        threading.Thread(target=beat, name="polyfuse-alive", daemon=True).start()
        try:
            yield
        finally:
            end.set()

    def _wait(self, name: str, owner: int, seconds: float, help: tuple[str, Help] | None) -> None:
        begun = heard = time.monotonic()
        pause, beats, turn, number = _PAUSES[0], -1, 1, 0
        if help is not None and self._store.find(f"{name}/done") is None:
            number = self._store.add(f"{name}/helpers", 1)
            about = {"rank": self._rank, "host": help[0]}
            self._store.put(f"{name}/helper/{number}", json.dumps(about))
        while (text := self._store.find(f"{name}/done")) is None:
            now = time.monotonic()
            found = self._store.add(f"alive/{owner}", 0)
            if found != beats:
                heard, beats = now, found
            if now - heard > _SILENT or now - begun > seconds:
                _log.info("rank %d, which compiles %s, is not waited for any longer", owner, name)
                return
            asked = self._store.find_bytes(f"{name}/asked/{number}/{turn}") if number else None
            if asked is not None and help is not None:
                self._store.put(f"{name}/answered/{number}/{turn}", help[1](asked))
                turn, pause = turn + 1, _PAUSES[0]
                continue
            time.sleep(pause)
            pause = min(_PAUSES[1], pause * 1.5)
        error = json.loads(text)["error"]
        if error:
            raise RankError(
                f"rank {owner} failed to compile a graph that rank {self._rank} waited for: {error}",
                f"mend that error of rank {owner}, or set rank_exchange=0 to have each rank compile",
            )
