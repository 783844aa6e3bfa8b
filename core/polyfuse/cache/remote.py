"""Stores on other machines: what is asked of one, and those that come with Polyfuse.

A remote store maps names, which are a kind and an address (`units/<address>`), to bytes. Nothing is ever
removed there by us; what it forgets is made again.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.files import atomic_write
from polyfuse.base.log import warn_once

__all__ = ["RemoteStore", "GuardedStore", "remote_store"]

# Seconds after which a server counts as gone.
_PATIENCE: Final = 10.0

# A store that fails so often in a row is left alone by this process.
_FAILURES: Final = 3


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
            return (self._folder / name).read_bytes()
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
            content: bytes = answer.read()
            return content


class GuardedStore:
    """A remote store whose failures are misses, warned about once; after a few in a row, nobody asks it."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._failures = 0

    def get(self, name: str) -> bytes | None:
        """What is stored under a name; None where nothing can be had."""
        return self._tried(self._store.get, name)

    def put(self, name: str, content: bytes) -> None:
        """Store something under a name, if that is possible."""
        self._tried(self._store.put, name, content)

    def _tried(self, ask: Callable[..., bytes | None], *args: object) -> bytes | None:
        if self._failures >= _FAILURES:
            return None
        try:
            answer = ask(*args)
        except Exception as error:
            self._failures += 1
            warn_once(
                "cache",
                f"the remote cache does not answer ({type(error).__name__}: {error}), so kernels and graphs"
                " are made here; see that it can be reached, or unset the option `remote_cache`",
                key="remote",
            )
            return None
        self._failures = 0
        return answer


def remote_store(address: str) -> RemoteStore:
    """The store at an address: `http://...` or `https://...`, `module:function` for one that a function
    returns, and otherwise a folder.

    Raises:
        InvalidOptionError: there is no such function, or what it returns is no store.
    """
    if address.startswith(("http://", "https://")):
        return HttpStore(address)
    module, colon, name = address.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        return FolderStore(Path(address).expanduser().absolute())
    try:
        store = getattr(import_module(module), name)()
    except Exception as error:
        raise InvalidOptionError(
            f"the option 'remote_cache' names {address}, which gives no store"
            f" ({type(error).__name__}: {error})",
            "name a function without arguments that can be imported, an address with http, or a folder",
        ) from error
    if not isinstance(store, RemoteStore):
        raise InvalidOptionError(
            f"the option 'remote_cache' names {address}, which returns a {type(store).__name__}",
            "return something with the methods `get` and `put`",
        )
    return store
