"""Remote stores that hang, drip, lie, die, or offer 10 GB: each costs seconds, and nothing is wrong."""

from __future__ import annotations

import io
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostile_packages import mutated
from polyfuse.base.log import reset_warned
from polyfuse.cache import KernelStore, kernel_key, remote
from polyfuse.cache.archive import pack
from polyfuse.cache.artifacts import artifacts
from polyfuse.cache.remote import GuardedStore, remote_store
from polyfuse.cache.sharing import Sharing

KEY = kernel_key("k", "toy", {})
HEAD = b"HTTP/1.1 200 OK\r\n"


def build(folder: Path) -> None:
    (folder / "code").write_bytes(b"code")


def endless(send: Callable[[bytes], None]) -> None:
    send(HEAD + b"Content-Type: text/plain\r\n\r\n")
    while True:
        send(bytes(1 << 16))


def drip(send: Callable[[bytes], None], head: bytes) -> None:
    send(head)
    while True:
        send(b"x")
        time.sleep(0.02)


def silent(send: Callable[[bytes], None]) -> None:
    time.sleep(600)


BEHAVIOURS: dict[str, Callable[[Callable[[bytes], None]], None]] = {
    "closes at once": lambda send: None,
    "says nothing": silent,
    "drips the status": lambda send: drip(send, b"HTTP/1.1 2"),
    "drips the head": lambda send: drip(send, HEAD + b"X-Header: "),
    "drips the content": lambda send: drip(send, HEAD + b"Content-Length: 1000000\r\n\r\n"),
    "drips in chunks": lambda send: drip(send, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
    "never ends": endless,
    "offers 10 GB": lambda send: send(HEAD + b"Content-Length: 10737418240\r\n\r\nx"),
    "dies in the middle": lambda send: send(HEAD + b"Content-Length: 1000\r\n\r\nhalf"),
    "speaks something else": lambda send: send(b"220 mail.example ESMTP\r\n"),
    "has no head": lambda send: send(bytes(100_000)),
    "lies about the length": lambda send: send(HEAD + b"Content-Length: -5\r\n\r\nx"),
    "has a length that is none": lambda send: send(HEAD + b"Content-Length: many\r\n\r\nx"),
    "sends elsewhere for ever": lambda send: send(
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
    ),
    "sends to a file": lambda send: send(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"),
    "sends what it likes": lambda send: send(HEAD + b"Content-Length: 9\r\n\r\n../../../"),
}


@pytest.fixture
def serve() -> Iterator[Callable[[str], str]]:
    """Return `serve(behaviour)`: the address of a server that behaves so."""
    listener = socket.create_server(("127.0.0.1", 0))
    chosen: list[str] = []

    def answer(client: socket.socket) -> None:
        with client:
            try:
                client.recv(1 << 16)
                BEHAVIOURS[chosen[0]](client.sendall)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def serve(name: str) -> str:
        chosen[:] = [name]
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    threading.Thread(target=accept, daemon=True).start()
    yield serve
    listener.close()


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_store_that_misbehaves(serve, tmp_path, monkeypatch, name):
    reset_warned()
    monkeypatch.setattr(remote, "_PATIENCE", 0.3)
    monkeypatch.setattr(remote, "_LARGEST", 1 << 22)
    sharing = Sharing(tmp_path / "cache", serve(name))
    store = KernelStore(tmp_path / "cache", sharing=sharing)
    tracemalloc.start()
    try:
        begun = time.monotonic()
        for number in range(6):
            key = kernel_key(f"k{number}", "toy", {})
            store.fetch([key])
            store.add({key: "k"}, build)
            assert store.find(key) is not None
        sharing.flush()
        # a hang would be ten minutes or more
        assert time.monotonic() - begun < 300
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


class Hanging:
    """A store of the user's own that never comes back."""

    def __init__(self) -> None:
        self.asked = 0
        self._each = threading.Semaphore(0)

    def get(self, name: str) -> bytes | None:
        self.asked += 1
        self._each.release()
        threading.Event().wait(60)
        return None

    def is_asked(self) -> bool:
        """Wait until one more request has come: on a busy machine, its patience may be over before."""
        return self._each.acquire(timeout=60)

    def put(self, name: str, content: bytes) -> None:
        self.get(name)


def test_a_circuit_breaker(monkeypatch):
    reset_warned()
    monkeypatch.setattr(remote, "_PATIENCE", 0.05)
    hanging = Hanging()
    store = GuardedStore(hanging)
    for _ in range(20):
        assert store.get("x") is None
    assert all(hanging.is_asked() for _ in range(3)) and hanging.asked == 3
    store._closed_until = 0.0
    for _ in range(20):
        store.get("x")
    assert hanging.is_asked() and hanging.asked == 4, "it is asked once again"


def test_what_is_no_bytes_is_distrusted(monkeypatch, caplog):
    reset_warned()

    class Odd:
        answers = 0

        def get(self, name: str) -> object:
            self.answers += 1
            return "text"

        def put(self, name: str, content: bytes) -> None:
            pass

    odd = Odd()
    store = GuardedStore(odd)  # type: ignore[arg-type]
    assert [store.get("x") for _ in range(9)] == [None] * 9
    assert odd.answers == 3 and "answers with a str" in caplog.text


def test_a_folder_with_a_huge_file_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "_LARGEST", 1 << 20)
    (tmp_path / "units").mkdir()
    with open(tmp_path / "units" / "x", "wb") as file:
        file.truncate(10 << 30)  # a hole: nothing is allocated
    store = remote_store(str(tmp_path))
    with pytest.raises(ValueError, match="more than"):
        store.get("units/x")


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_store_that_lies(tmp_path, count):
    """Each unit that it sends is damaged in a way of its own: none arrives, or the one that was given."""
    first = KernelStore(tmp_path / "first")
    folder = first.add({KEY: "k"}, build)
    stream = io.BytesIO()
    pack(first.root, artifacts(first.root, "kernels"), stream)
    shared = tmp_path / "remote"
    for kind in ("kernels", "units"):
        (shared / kind).mkdir(parents=True)
    (shared / "kernels" / KEY).write_text(folder.name)
    for number in range(count):
        try:
            lie = mutated(number, stream.getvalue())
        except KeyError:  # what is described is a package's
            continue
        (shared / "units" / folder.name).write_bytes(lie)
        root = tmp_path / str(number)
        store = KernelStore(root, sharing=Sharing(root, str(shared)))
        store.fetch([KEY])
        found = store.find(KEY)
        assert found is None or (found.folder / "code").read_bytes() == b"code", number
