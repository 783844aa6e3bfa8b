"""Remote stores in what fsspec knows, and stores that are only looked into."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyfuse.base.errors import InvalidOptionError
from polyfuse.cache.clients.filesystems import FilesystemStore
from polyfuse.cache.remote import FolderStore, GuardedStore, RemoteStore, remote_store
from polyfuse.cache.sharing import Sharing

SERVER = "the packages of the extra `stores` (moto, flask, s3fs) are not installed"


def check_store(store: RemoteStore) -> None:
    assert store.get("units/a") is None
    store.put("units/a", b"one")
    store.put("units/b", b"\0" * 1000)
    assert store.get("units/a") == b"one"
    store.put("units/a", b"two")
    assert store.get("units/a") == b"two"
    assert store.get("units/b") == b"\0" * 1000
    assert store.get("kernels/a") is None


def test_a_folder_in_memory(request: pytest.FixtureRequest) -> None:
    store = remote_store(f"memory://{request.node.name}/deep/er")
    assert isinstance(store, FilesystemStore)
    check_store(store)


def test_addresses_of_files_are_folders(tmp_path: Path) -> None:
    store = remote_store(f"file://{tmp_path}/with%20space")
    assert isinstance(store, FolderStore)
    check_store(store)
    assert (tmp_path / "with space" / "units" / "a").read_bytes() == b"two"


def test_too_much_is_refused(request: pytest.FixtureRequest) -> None:
    address = f"memory://{request.node.name}"
    FilesystemStore(address, 100).put("units/a", b"x" * 11)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        FilesystemStore(address, 10).get("units/a")


def test_an_unknown_scheme_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(InvalidOptionError, match=r"nowhere://x.*s3fs"):
        remote_store("nowhere://x")


def test_nothing_is_sent_to_a_store_that_is_only_looked_into(tmp_path: Path) -> None:
    there = FolderStore(tmp_path / "store")
    there.put("units/a", b"one")
    guarded = GuardedStore(there, lookup=True)
    guarded.put("units/b", b"two")
    assert guarded.get("units/a") == b"one"
    assert there.get("units/b") is None
    sharing = Sharing(tmp_path / "cache", str(tmp_path / "store"), lookup=True)
    sharing.give_record("timings/a", "text")
    sharing.flush()
    assert there.get("timings/a") is None


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server in this process that speaks S3."""
    if not all(importlib.util.find_spec(name) for name in ("moto", "s3fs", "flask")):
        pytest.skip(SERVER)
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket/polyfuse"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_server_that_speaks_s3(bucket: str) -> None:
    check_store(remote_store(bucket))
