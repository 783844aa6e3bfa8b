"""Exchange of the cache folder with a store that several machines share.

Under `kernels/<address>` lies the address of the unit that holds a kernel, under `units/<address>` and
`compiled/<address>` an archive of one artifact each (`archive.py`), under `timings/<address>` what was
measured, as a record with its seal. What arrives becomes part of the cache
folder like anything made here, and is found there; what does not arrive, or is damaged, is made here, and
given to the store to replace it.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final

from polyfuse.base.errors import CacheError
from polyfuse.base.log import get_logger
from polyfuse.cache.archive import AddUnit, pack, unpack
from polyfuse.cache.artifacts import Artifact, is_address
from polyfuse.cache.remote import GuardedStore, RemoteStore, remote_store
from polyfuse.cache.sealing import seal_of, seals_equal

_log = get_logger("cache")

# Requests on their way at once.
_TOGETHER: Final = 8


class Sharing:
    """A cache folder's exchange with a remote store. What is given goes there in the background; a process
    ends when it has arrived, or cannot.

    Args:
        root: of the cache folder.
        remote: the store, or its address.
        secret: with which what is exchanged is sealed.
        lookup: nothing is given to the store.
    """

    def __init__(
        self, root: Path, remote: str | RemoteStore, secret: bytes | None = None, *, lookup: bool = False
    ) -> None:
        self._root = root
        self._secret = secret
        found = remote_store(remote) if isinstance(remote, str) else remote
        self._remote = GuardedStore(found, lookup=lookup)
        self._lock = threading.Lock()
        self._sender: ThreadPoolExecutor | None = None
        self._process_id = 0
        self._sent: list[Future[None]] = []

    def fetch_kernels(self, keys: Sequence[str], add: AddUnit) -> None:
        """Add the units that hold kernels, as far as the store has them."""
        if not keys:
            return
        with ThreadPoolExecutor(min(_TOGETHER, len(keys)), thread_name_prefix="polyfuse-fetch") as threads:
            answers = threads.map(lambda key: self._remote.get(f"kernels/{key}"), keys)
            units = {answer.decode("ascii", "replace") for answer in answers if answer is not None}
            fetch = partial(self._fetch, add=add, kind="kernels")
            for done in [threads.submit(fetch, f"units/{u}") for u in units if is_address(u)]:
                done.result()

    def fetch_unit(self, unit: str, add: AddUnit, folder: Callable[[str], Path | None]) -> Path | None:
        """The folder of a unit of kernels, from the store if it is not there.

        Args:
            folder: of a unit that is there, in full.
        """
        found = folder(unit)
        if found is None and is_address(unit):
            self._fetch(f"units/{unit}", add, "kernels")
            found = folder(unit)
        return found

    def fetch_graph(self, key: str) -> None:
        """Add the compiled graphs under a key, if the store has some that a machine with our secret made."""
        if self._secret is not None:
            self._fetch(f"compiled/{key}", _no_units, "compiled")

    def give_unit(self, folder: Path, kernels: Mapping[str, str]) -> None:
        """Give a unit of kernels to the store."""
        self._send(lambda: self._give_unit(folder, tuple(kernels)))

    def give_graph(self, key: str) -> None:
        """Give the compiled graphs under a key to the store, besides those that are there. Without a secret,
        nobody would read them.
        """
        if self._secret is not None:
            self._send(lambda: self._give_graph(key))

    def fetch_record(self, name: str) -> str:
        """The text of a record, such as `timings/<address>`; empty where the store has none that a machine
        with our secret wrote.
        """
        content = self._remote.get(name)
        if content is None:
            return ""
        seal, _, text = content.decode("utf-8", "replace").partition("\n")
        if self._secret is not None and not seals_equal(seal, self._seal(name, text)):
            self._remote.distrust(f"what it has as {name} was not sealed with our secret")
            return ""
        return text

    def give_record(self, name: str, text: str) -> None:
        """Give a record to the store."""
        content = f"{self._seal(name, text)}\n{text}".encode()
        self._send(lambda: self._remote.put(name, content))

    def _seal(self, name: str, text: str) -> str:
        return "" if self._secret is None else seal_of(self._secret, [(name, text.encode())])

    def flush(self) -> None:
        """Wait until what was given has arrived, or cannot."""
        with self._lock:
            sent, self._sent = self._sent, []
        wait(sent)

    def _fetch(self, name: str, add: AddUnit, kind: str) -> None:
        content = self._remote.get(name)
        if content is None:
            return
        try:
            done = unpack(self._root, io.BytesIO(content), add, self._secret, (kind,))
        except CacheError as error:
            self._remote.distrust(f"what it has as {name} cannot be used: {error}")
            return
        except OSError as error:
            _log.info("%s of the remote cache cannot be stored: %s", name, error)
            return
        _log.info("%s came from the remote cache: %s", name, done)

    def _give_unit(self, folder: Path, kernels: Sequence[str]) -> None:
        if self._put(f"units/{folder.name}", Artifact("kernels", folder, 0, 0.0)):
            for key in kernels:
                self._remote.put(f"kernels/{key}", folder.name.encode())

    def _give_graph(self, key: str) -> None:
        self.fetch_graph(key)  # others may have compiled it under other guards
        self._put(f"compiled/{key}", Artifact("compiled", self._root / "compiled" / key, 0, 0.0))

    def _put(self, name: str, item: Artifact) -> bool:
        stream = io.BytesIO()
        if not pack(self._root, (item,), stream, self._secret):
            return False
        self._remote.put(name, stream.getvalue())
        return True

    def _send(self, task: Callable[[], None]) -> None:
        with self._lock:
            if self._process_id != os.getpid():  # threads do not survive a fork
                self._process_id = os.getpid()
                self._sender = ThreadPoolExecutor(1, thread_name_prefix="polyfuse-share")
                self._sent = []
            assert self._sender is not None
            try:
                self._sent = [future for future in self._sent if not future.done()]
                self._sent.append(self._sender.submit(task))
            except RuntimeError:  # the interpreter is ending, so that no thread can be started
                _log.info("something was not given to the remote cache: the process ends")


def _no_units(kernels: Mapping[str, str], build: Callable[[Path], None]) -> object:
    raise ValueError("no unit is expected here")
