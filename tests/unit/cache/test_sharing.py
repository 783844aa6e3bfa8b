"""Remote stores: what is exchanged, and that no failure of one is anybody's failure."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from autotuning import record
from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.log import reset_warned
from polyfuse.base.settings import Settings
from polyfuse.cache import GraphFolder, KernelStore, kernel_key
from polyfuse.cache.archive import pack
from polyfuse.cache.artifacts import KINDS, artifacts
from polyfuse.cache.clients.redis import RedisStore
from polyfuse.cache.remote import FolderStore, GuardedStore, HttpStore, RemoteStore, remote_store
from polyfuse.cache.sharing import Sharing
from polyfuse.cache.timings import Record, TimingStore
from requirements import REDIS
from toy_backend import source

SECRET = b"a secret of these machines"
ONE, TWO, THREE = (kernel_key(source(name).key, "toy", {}) for name in "abc")


def build(folder: Path) -> None:
    (folder / "code").write_bytes(b"code")


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def remote(tmp_path) -> Path:
    return tmp_path / "remote"


def store_of(tmp_path: Path, name: str, remote: Path | str) -> tuple[KernelStore, Sharing]:
    root = tmp_path / name
    sharing = Sharing(root, str(remote))
    return KernelStore(root, sharing=sharing), sharing


def given(tmp_path: Path, remote: Path | str) -> None:
    """A first machine gives two units."""
    store, sharing = store_of(tmp_path, "first", remote)
    store.add({ONE: "s1", TWO: "s2"}, build)
    store.add({THREE: "s3"}, build)
    sharing.flush()


def test_what_one_machine_built_another_finds(tmp_path, remote):
    given(tmp_path, remote)
    store, sharing = store_of(tmp_path, "second", remote)
    assert store.find(TWO) is None, "nothing is fetched unasked"
    store.fetch([TWO, THREE, kernel_key("none", "toy", {})])
    for key, source_key in ((ONE, "s1"), (TWO, "s2"), (THREE, "s3")):
        location = store.find(key)
        assert location is not None and location.source_key == source_key
        assert (location.folder / "code").read_bytes() == b"code"
    before = {path: path.stat().st_mtime_ns for path in remote.rglob("*")}
    sharing.flush()
    assert before == {path: path.stat().st_mtime_ns for path in remote.rglob("*")}, "nothing is given back"


def test_without_a_remote_store_nothing_is_fetched(tmp_path):
    KernelStore(tmp_path).fetch([ONE])
    assert KernelStore(tmp_path).find(ONE) is None and not list(tmp_path.iterdir())


@pytest.mark.each_value
@pytest.mark.parametrize("content", [b"", b"damaged", b"../../x", b"\xff" * 51])
@pytest.mark.parametrize("kind", ["kernels", "units"])
def test_what_is_damaged_is_built_here_and_mended(tmp_path, remote, kind, content):
    given(tmp_path, remote)
    for path in (remote / kind).iterdir():
        path.write_bytes(content)
    store, sharing = store_of(tmp_path, "second", remote)
    store.fetch([ONE])
    assert store.find(ONE) is None
    store.add({ONE: "s1", TWO: "s2"}, build)
    sharing.flush()
    store, sharing = store_of(tmp_path, "third", remote)
    store.fetch([ONE])
    assert store.find(ONE) is not None


def test_graphs_of_several_machines_are_joined(tmp_path, remote):
    for name in ("one", "two"):
        folder = GraphFolder(tmp_path / name)
        (folder.path / "key").mkdir(parents=True)
        (folder.path / "key" / name).write_text(name)
        sharing = Sharing(tmp_path / name, str(remote), SECRET)
        sharing.give_graph("key")
        sharing.flush()
    sharing = Sharing(tmp_path / "three", str(remote), SECRET)
    sharing.fetch_graph("key")
    sharing.fetch_graph("none")
    found = tmp_path / "three" / "compiled" / "key"
    assert sorted(path.name for path in found.iterdir()) == ["one", "two"]
    for secret in (None, b"another secret of machines"):
        Sharing(tmp_path / "four", str(remote), secret).fetch_graph("key")
        assert not GraphFolder(tmp_path / "four").holds("key"), "pickles need the secret"
    (remote / "compiled" / "key").write_bytes(b"damaged")
    Sharing(tmp_path / "four", str(remote), SECRET).fetch_graph("key")
    assert not GraphFolder(tmp_path / "four").holds("key")


def test_without_a_secret_no_graph_is_given(tmp_path, remote):
    folder = GraphFolder(tmp_path / "one")
    (folder.path / "key").mkdir(parents=True)
    (folder.path / "key" / "entry").write_text("entry")
    sharing = Sharing(tmp_path / "one", str(remote))
    sharing.give_graph("key")
    sharing.flush()
    assert not remote.exists()


def test_with_a_secret_kernels_of_others_are_refused(tmp_path, remote):
    given(tmp_path, remote)
    root = tmp_path / "second"
    store = KernelStore(root, sharing=Sharing(root, str(remote), SECRET))
    store.fetch([ONE])
    assert store.find(ONE) is None


def test_other_kinds_of_artifacts_do_not_arrive(tmp_path, remote):
    """A store that is asked for a unit sends measurements and bars along."""
    given(tmp_path, remote)
    root = tmp_path / "liar"
    for name in ("barred/x.json", "timings/ab/abc.json"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("{}")
    store = KernelStore(root)
    store.add({ONE: "s1", TWO: "s2"}, build)
    stream = io.BytesIO()
    pack(root, [item for kind in KINDS for item in artifacts(root, kind)], stream)
    (unit,) = artifacts(root, "kernels")
    (remote / "units" / unit.path.name).write_bytes(stream.getvalue())
    second, _ = store_of(tmp_path, "second", remote)
    second.fetch([ONE])
    assert second.find(ONE) is not None
    assert not (second.root / "barred").exists() and not (second.root / "timings").exists()


def test_units_do_not_arrive_as_graphs(tmp_path, remote):
    given(tmp_path, remote)
    (unit, *_) = (remote / "units").iterdir()
    (remote / "compiled").mkdir()
    (remote / "compiled" / "key").write_bytes(unit.read_bytes())
    Sharing(tmp_path / "second", str(remote), SECRET).fetch_graph("key")
    assert not [path for path in (tmp_path / "second").rglob("*") if path.is_file()]


class Server(BaseHTTPRequestHandler):
    """Keeps what it is given, and answers oddly where a name says so."""

    stored: dict[str, bytes]

    def do_GET(self) -> None:
        content = self.stored.get(self.path)
        self.send_response(500 if "broken" in self.path else 404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def do_PUT(self) -> None:
        self.stored[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Server.stored = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/cache"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server(tmp_path, address):
    given(tmp_path, address)
    assert len(Server.stored) == 5 and f"/cache/kernels/{ONE}" in Server.stored
    store, _ = store_of(tmp_path, "second", address)
    store.fetch([ONE, THREE])
    assert store.find(TWO) is not None and store.find(THREE) is not None
    plain = remote_store(address)
    assert isinstance(plain, HttpStore) and plain.get("units/none") is None
    with pytest.raises(OSError, match="500"):
        plain.get("broken")


class Redis:
    """A server that speaks the protocol of Redis, as strictly as the real one."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, bytes], bytes] = {}
        self.expiry: dict[bytes, int] = {}
        self.connections = 0
        self.password = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self) -> None:
        """Close the connections, as a server does that was idle for too long."""
        for client in self._open:
            with contextlib.suppress(OSError):  # the other side may have closed it
                client.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        database, known = 0, not self.password
        # a client that goes while an answer is on its way resets the connection
        with contextlib.suppress(ConnectionError), client, client.makefile("rwb") as stream:
            while line := stream.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int(stream.readline()[1:])
                    words.append(stream.read(length))
                    assert stream.read(2) == b"\r\n"
                command, *rest = words
                answer = b"+OK\r\n"
                if command == b"AUTH":
                    known = rest[-1] == self.password
                    answer = answer if known else b"-WRONGPASS invalid password\r\n"
                elif not known:
                    answer = b"-NOAUTH Authentication required.\r\n"
                elif command == b"SELECT":
                    database = int(rest[0])
                elif command == b"SET":
                    self.stored[database, rest[0]] = rest[1]
                    self.expiry |= {rest[0]: int(rest[3])} if rest[2:] else {}
                else:
                    found = self.stored.get((database, rest[0]))
                    answer = b"$-1\r\n" if found is None else b"$%d\r\n%b\r\n" % (len(found), found)
                stream.write(answer)
                stream.flush()


@pytest.fixture
def redis() -> Iterator[Redis]:
    server = Redis()
    yield server
    server.close()


def test_redis(tmp_path, redis):
    redis.password = b"geheim:/"
    address = f"redis://:geheim%3A%2F@127.0.0.1:{redis.port}/3?ttl=60"
    given(tmp_path, address)
    assert (3, f"polyfuse:kernels/{ONE}".encode()) in redis.stored and set(redis.expiry.values()) == {60}
    store, _ = store_of(tmp_path, "second", address)
    store.fetch([ONE, THREE])
    assert store.find(TWO) is not None and store.find(THREE) is not None
    plain = remote_store(address)
    assert isinstance(plain, RedisStore) and plain.get("units/none") is None
    large = bytes(range(256)) * 4096
    plain.put("large", large)
    before = redis.connections
    assert plain.get("large") == large and redis.connections == before, "a connection stays open"
    redis.drop()
    assert plain.get("large") == large, "and opened again where the server closed it"
    redis.password = b"another"
    with pytest.raises(ConnectionError, match="WRONGPASS"):
        remote_store(address).get("large")


def answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a server listens; False if it ended."""
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return server.poll() is None
        time.sleep(0.05)
    return False


@pytest.fixture
def redis_server(tmp_path) -> Iterator[str]:
    """The address of a `redis-server` of this test's own."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip(REDIS)
    options = {"bind": "127.0.0.1", "dir": tmp_path, "requirepass": "geheim", "save": ""}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    for _ in range(5):
        port = free_port()
        server = subprocess.Popen([program, "--port", str(port), *words], stdout=subprocess.DEVNULL)
        if answers(server, port):
            break  # otherwise somebody took the port meanwhile, and it ended
    try:
        yield f"redis://:geheim@127.0.0.1:{port}/2"
    finally:
        server.terminate()
        server.wait(30)


def test_a_real_redis_server(tmp_path, redis_server):
    given(tmp_path, redis_server)
    store, _ = store_of(tmp_path, "second", redis_server)
    store.fetch([ONE, THREE])
    assert store.find(TWO) is not None and store.find(THREE) is not None
    large = bytes(range(256)) * 4096
    remote_store(redis_server).put("large", large)
    assert remote_store(redis_server).get("large") == large
    assert remote_store(redis_server).get("none") is None
    remote_store(f"{redis_server}?ttl=1").put("short", b"x")
    remote_store(redis_server.replace("/2", "/3")).put("apart", b"x")
    assert remote_store(redis_server).get("apart") is None
    with pytest.raises(ConnectionError, match=r"WRONGPASS|NOAUTH"):
        remote_store(redis_server.replace("geheim", "another")).get("large")
    time.sleep(1.2)
    assert remote_store(redis_server).get("short") is None


def test_an_answer_of_redis_that_is_too_large_is_not_read(redis):
    address = f"redis://127.0.0.1:{redis.port}"
    RedisStore(address, 1.0, 1 << 20).put("large", bytes(2000))
    with pytest.raises(ValueError, match="2000 bytes, of at most 1000"):
        RedisStore(address, 1.0, 1000).get("large")


@pytest.mark.parametrize(
    "wrong", ["redis://", "redis://h:x", "redis://h/one", "redis://h?ttl=-1", "redis://h?a=1"]
)
def test_addresses_of_redis_that_cannot_be_read(wrong):
    with pytest.raises(InvalidOptionError, match="write redis://host"):
        remote_store(wrong)


def test_what_one_machine_measured_another_finds(tmp_path, remote):
    key, known = "ab" * 26, record({"library": 2.0, "x a=1": 1.0}, "mm of float32[7x5]")
    part = replace(known, complete=False)
    for secret, name in ((None, "open"), (SECRET, "sealed")):
        sharing = Sharing(tmp_path / name, str(remote / name), secret)
        store = TimingStore(tmp_path / name, lambda sharing=sharing: sharing)
        store.write(key, part)
        sharing.flush()
        assert not remote.joinpath(name).exists(), "a search that goes on is nobody else's"
        store.write(key, known)
        sharing.flush()
        reading = Sharing(tmp_path / f"{name} 2", str(remote / name), secret)
        other = TimingStore(tmp_path / f"{name} 2", lambda reading=reading: reading)
        assert other.read(key) == known
        assert TimingStore(tmp_path / f"{name} 2").read(key) == known, "what came is stored"
        assert other.read("cd" * 26) == Record()
    # without the secret nothing that others could have written is believed
    for kind in ("open", "sealed"):
        path = remote / kind / "timings" / key
        path.write_text(path.read_text().replace("2.0", "3.0"))
        third = Sharing(tmp_path / f"{kind} 3", str(remote / kind), SECRET)
        store = TimingStore(tmp_path / f"{kind} 3", lambda third=third: third)
        assert store.read(key) == Record()


class Failing:
    """A store that never answers."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, name: str) -> bytes | None:
        self.asked += 1
        raise ConnectionError("nobody there")

    def put(self, name: str, content: bytes) -> None:
        self.get(name)


def test_a_store_that_fails_is_left_alone_after_a_while(caplog):
    reset_warned()
    failing = Failing()
    store = GuardedStore(failing)
    for _ in range(3):
        assert store.get("name") is None
        store.put("name", b"")
    assert failing.asked == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "nobody there" in caplog.text and "remote_cache" in caplog.text


def test_a_success_forgives_earlier_failures(tmp_path):
    failing = Failing()
    store = GuardedStore(failing)
    for _ in range(2):
        store.get("name")
        store._store = FolderStore(tmp_path)
        store.get("name")
        store._store = failing
        store.get("name")
    store.get("name")
    assert failing.asked == 5


def test_a_dead_server_costs_no_kernel(tmp_path, address):
    reset_warned()
    store, sharing = store_of(tmp_path, "first", "http://127.0.0.1:9/none")
    store.fetch([ONE])
    store.add({ONE: "s1"}, build)
    sharing.flush()
    assert store.find(ONE) is not None


def of_my_own() -> RemoteStore:
    return Failing()


def none_at_all() -> object:
    return object()


def test_addresses(tmp_path):
    assert isinstance(remote_store("https://host/path"), HttpStore)
    for folder in (str(tmp_path), "relative/folder", "~/folder", "C:\\folder"):
        assert isinstance(remote_store(folder), FolderStore)
    assert isinstance(remote_store(f"{__name__}:of_my_own"), Failing)
    for wrong in (f"{__name__}:none_at_all", f"{__name__}:missing", "no_such_module_of_a_test:store"):
        with pytest.raises(InvalidOptionError, match="remote_cache"):
            remote_store(wrong)


def test_only_those_who_ask_share(tmp_path):
    settings = Settings(cache_dir=str(tmp_path / "cache"), remote_cache=str(tmp_path / "remote"))
    assert KernelStore.open(settings).sharing is None
    assert KernelStore.open(settings, shared=True).sharing is not None
    off = Settings(cache=False, remote_cache=str(tmp_path / "remote"))
    assert KernelStore.open(off, shared=True).sharing is None
    assert KernelStore.open(Settings(cache_dir=str(tmp_path / "cache")), shared=True).sharing is None
