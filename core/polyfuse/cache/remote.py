"""Stores on other machines: what is asked of one, and those that come with Polyfuse.

A remote store maps names, which are a kind and an address (`units/<address>`), to bytes. Nothing is ever
removed there by us; what it forgets is made again.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import url2pathname

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.files import atomic_write
from polyfuse.base.log import warn_once
from polyfuse.base.text import shorten
from polyfuse.cache.clients.filesystems import FilesystemStore, is_filesystem
from polyfuse.cache.clients.redis import RedisStore, is_redis

# Seconds in which a request must be over, whatever the store sends meanwhile.
_PATIENCE: Final = 10.0

# No artifact of ours has more bytes.
_LARGEST: Final = 1 << 28

# A store that fails so often in a row is left alone by this process for so many seconds, and then asked once.
_FAILURES: Final = 3
_REST: Final = 300.0

_CHUNK: Final = 1 << 16


@runtime_checkable
class RemoteStore(Protocol):
    """What a remote store does. Both may raise anything, and are called from several threads."""

    def get(self, name: str) -> bytes | None:
        """What is stored under a name; None where there is nothing."""

    def put(self, name: str, content: bytes) -> None:
        """Store something under a name, in place of what may be there."""


class FolderStore:
    """A folder that several machines see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """The content of a file."""
        try:
            with open(self._folder / name, "rb") as file:
                return _limited(file)
        except FileNotFoundError:
            return None

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        atomic_write(self._folder / name, content, keep_equal=True)


class HttpStore:
    """A server that answers GET and PUT, such as those that keep what builds made."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def get(self, name: str) -> bytes | None:
        """What the server has."""
        try:
            return self._ask(urllib.request.Request(f"{self._address}/{name}"))
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                return None
            raise

    def put(self, name: str, content: bytes) -> None:
        """Give it to the server."""
        headers = {"Content-Type": "application/octet-stream"}
        self._ask(urllib.request.Request(f"{self._address}/{name}", content, headers, method="PUT"))

    def _ask(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            said = answer.headers.get("Content-Length")
            if said is not None and int(said) > _LARGEST:
                raise ValueError(f"it offers {int(said)} bytes, of at most {_LARGEST}")
            return _limited(answer)


def _limited(stream: IO[bytes]) -> bytes:
    """All of a stream, if that is not too much and does not take too long."""
    until = time.monotonic() + _PATIENCE
    found = bytearray()
    while chunk := stream.read(_CHUNK):
        found += chunk
        if len(found) > _LARGEST:
            raise ValueError(f"it sends more than {_LARGEST} bytes")
        if time.monotonic() > until:
            raise TimeoutError(f"it did not answer within {_PATIENCE:.0f} seconds")
    return bytes(found)


class GuardedStore:
    """A remote store whose failures are misses, warned about once. A request that takes too long is a
    failure; after a few in a row, nobody asks for a while. After a few answers that cannot be used, nobody
    asks again.

    Args:
        lookup: nothing is stored there.
    """

    def __init__(self, store: RemoteStore, *, lookup: bool = False) -> None:
        self._store = store
        self._lookup = lookup
        self._lock = threading.Lock()
        self._failures = 0
        self._lies = 0
        self._closed_until = 0.0

    def get(self, name: str) -> bytes | None:
        """What is stored under a name; None where nothing can be had."""
        answer = None if self._lies >= _FAILURES else self._tried(lambda: self._store.get(name))
        if answer is not None and (not isinstance(answer, bytes) or len(answer) > _LARGEST):
            self.distrust(f"it answers with a {type(answer).__name__}, or with too much")
            return None
        return answer

    def put(self, name: str, content: bytes) -> None:
        """Store something under a name, if that is possible and wanted."""
        if len(content) <= _LARGEST and not self._lookup:
            self._tried(lambda: self._store.put(name, content))

    def distrust(self, why: str) -> None:
        """Count an answer that cannot be used."""
        with self._lock:
            self._lies += 1
        self._warn(why)

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= _FAILURES:
                self._closed_until = time.monotonic() + _REST
        self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, why: str) -> None:
        warn_once(
            "cache",
            f"the remote cache does not answer as it should ({shorten(why, 300)}), so kernels and graphs are"
            " made here; see that it can be reached, or unset the option `remote_cache`",
            key="remote",
        )

    def _tried(self, ask: Callable[[], Any]) -> Any:
        with self._lock:
            if self._failures >= _FAILURES:
                if time.monotonic() < self._closed_until:
                    return None
                # one asks, the others go on without
                self._closed_until = time.monotonic() + _REST
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(ask())
            except Exception as error:
                outcome.append(error)

        # a thread that never comes back holds up neither this one nor the end of the process
        asking = threading.Thread(target=run, name="polyfuse-remote", daemon=True)
        try:
            asking.start()
        except RuntimeError:  # the interpreter is ending
            return None
        asking.join(_PATIENCE)
        answer = outcome[0] if outcome else TimeoutError(f"no answer within {_PATIENCE:.0f} seconds")
        if isinstance(answer, Exception):
            self._failed(answer)
            return None
        with self._lock:
            self._failures = 0
        return answer


def remote_store(address: str) -> RemoteStore:
    """The store at an address: `http://...` or `https://...`, `redis://...` or `rediss://...`,
    what fsspec knows with another scheme, `module:function` for one that a function returns, and otherwise a
    folder.

    Raises:
        InvalidOptionError: there is no such function or scheme, or what the function returns is no store.
    """
    if address.startswith(("http://", "https://")):
        return HttpStore(address)
    if is_redis(address):
        return RedisStore(address, _PATIENCE, _LARGEST)
    if address.startswith("file://"):
        return FolderStore(Path(url2pathname(urlsplit(address).path)))
    if is_filesystem(address):
        return FilesystemStore(address, _LARGEST)
    module, colon, name = address.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        return FolderStore(Path(address).expanduser().absolute())
    try:
        store = getattr(import_module(module), name)()
    except Exception as error:
        raise InvalidOptionError(
            f"the option 'remote_cache' names {address}, which gives no store"
            f" ({type(error).__name__}: {error})",
            "name a function without arguments that can be imported, an address, or a folder",
        ) from error
    if not isinstance(store, RemoteStore):
        raise InvalidOptionError(
            f"the option 'remote_cache' names {address}, which returns a {type(store).__name__}",
            "return something with the methods `get` and `put`",
        )
    return store
