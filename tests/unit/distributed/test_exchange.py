"""What ranks in different cache folders give each other, and who makes it; two ranks are two threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from polyfuse.base.errors import RankError
from polyfuse.cache.clients.ranks import RankStore
from polyfuse.distributed.exchange import _folder_id
from polyfuse.runtime.ranks import claims
from polyfuse.runtime.ranks.claims import Claims
from polyfuse.torch_compat.groups import SharedStore
from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)


@pytest.fixture(params=["memory", "file", "tcp"])
def store(request, tmp_path) -> SharedStore:
    if request.param == "memory":
        return SharedStore(dist.HashStore())
    if request.param == "file":
        return SharedStore(dist.FileStore(str(tmp_path / "store"), 2))
    return SharedStore(dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30)))


def rank(store: SharedStore, number: int, folder: str = "", machine: str = "x", ranks: int = 2) -> Claims:
    return Claims(store, number, ranks, folder or f"folder {number}", machine, assumed=True)


def test_contents_of_any_size_arrive(store):
    ranks = RankStore(store, "x", 32 << 20)
    for content in (b"", b"abc", os.urandom((1 << 20) + 1), os.urandom(9 << 20)):
        ranks.put("units/a", content)
        assert RankStore(store, "x", 1).get("units/a") == content
    assert ranks.get("units/b") is None
    assert RankStore(store, "another cpu", 1).get("units/a") is None


def test_no_more_is_stored_than_may_be(store):
    first, second = RankStore(store, "x", 100), RankStore(store, "x", 100)
    first.put("a", b"1" * 60)
    second.put("b", b"2" * 60)
    second.put("c", b"3" * 40)
    assert [first.get(name) and len(first.get(name)) for name in "abc"] == [60, None, 40]


def test_one_makes_it_and_the_others_wait(store):
    order: list[str] = []
    begun = threading.Event()

    def first() -> None:
        with rank(store, 0).making("key", 30, lambda: order.append("given")) as claim:
            begun.set()
            assert claim is not None
            order.append("made")

    def second() -> None:
        begun.wait()
        with rank(store, 1).making("key", 30, lambda: order.append("never")) as claim:
            assert claim is None
            order.append("found")

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(first), threads.submit(second)]:
            done.result(30)
    assert order == ["made", "given", "found"]


def test_a_failure_takes_others_along(store):
    with pytest.raises(ValueError, match="broken"), rank(store, 0).making("key", 30, lambda: None):
        raise ValueError("broken")
    with (
        pytest.raises(
            RankError, match="rank 0 failed to compile a graph that rank 1 waited for: ValueError: b"
        ),
        rank(store, 1).making("key", 30, lambda: None),
    ):
        pass
    # one who was interrupted did not fail
    with pytest.raises(KeyboardInterrupt), rank(store, 0).making("other", 30, lambda: None):
        raise KeyboardInterrupt
    with rank(store, 1).making("other", 30, lambda: None) as claim:
        assert claim is None


def test_other_kinds_of_machines_make_their_own(store):
    with (
        rank(store, 0).making("key", 30, lambda: None) as first,
        rank(store, 1, machine="y").making("key", 30, lambda: None) as second,
    ):
        assert first is not None and second is not None


def test_ranks_of_one_folder_do_not_wait_for_each_other(store):
    with (
        rank(store, 0, "here").making("key", 30, lambda: None),
        rank(store, 1, "here").making("key", 30, lambda: None) as claim,
    ):
        assert claim is not None


def test_a_rank_that_is_gone_is_not_waited_for(store, monkeypatch):
    monkeypatch.setattr(claims, "_SILENT", 0.2)
    store.claim("claims/x/key", '{"rank": 0, "folder": "folder 0"}')
    with rank(store, 1).making("key", 30, lambda: None) as claim:
        assert claim is None
    monkeypatch.undo()
    with rank(store, 1).making("key", 0.1, lambda: None) as claim:
        assert claim is None


@pytest.mark.quick(1)
def test_a_rank_at_work_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(claims, "_SILENT", 0.6)
    monkeypatch.setattr(claims, "_BEAT", 0.05)
    made, begun = threading.Event(), threading.Event()

    def first() -> None:
        with rank(store, 0).making("key", 30, lambda: None):
            begun.set()
            made.wait(2)

    with ThreadPoolExecutor() as threads:
        done = threads.submit(first)
        begun.wait()
        with rank(store, 1).making("key", 30, lambda: None):
            assert not made.is_set()
        assert done.done() or done.result(30) is None


def test_a_store_that_is_gone_stops_nobody():
    class Gone(SharedStore):
        def claim(self, key: str, text: str) -> str:
            if key.startswith("claims/"):
                raise RuntimeError("connection reset")
            return super().claim(key, text)

    store = Gone(dist.HashStore())
    with rank(store, 0).making("key", 30, lambda: None) as claim:
        assert claim is None


def test_whether_ranks_see_one_folder(store):
    first = rank(store, 0, "here", ranks=3)
    assert first.needed() is True, "as is assumed of ranks that have not come"
    second = rank(store, 1, "here", ranks=3)
    rank(store, 1, "here", ranks=3)
    assert second.needed() is True, "a second session is no further rank"
    third = rank(store, 2, "here", ranks=3)
    assert first.needed() is second.needed() is third.needed() is None
    rank(store, 2, "there", ranks=3)
    assert first.needed() is True


def test_a_copy_of_a_folder_is_another_folder(tmp_path):
    import shutil

    folder_id = _folder_id(tmp_path / "one", "secret")
    assert _folder_id(tmp_path / "one", "secret") == folder_id
    assert _folder_id(tmp_path / "two", "secret") != folder_id
    shutil.copytree(tmp_path / "one", tmp_path / "image")
    assert _folder_id(tmp_path / "image", "another program's") != _folder_id(
        tmp_path / "one", "another program's"
    )
