from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from polyfuse.base.errors import CacheError
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore, cache_root, graph_key, kernel_key, unit_key, units, writable_root
from polyfuse.cache.limit import sweep
from toy_backend import source

KEY, OTHER = kernel_key(source("a").key, "toy", {}), kernel_key(source("b").key, "toy", {})


def write(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "code").write_text("code")


def test_add_then_find(tmp_path):
    store = KernelStore(tmp_path)
    assert store.find(KEY) is None
    folder = store.add({KEY: "s1", OTHER: "s2"}, write)
    for key, source_key in ((KEY, "s1"), (OTHER, "s2")):
        location = store.find(key)
        assert location is not None and location.folder == folder and location.source_key == source_key
    assert (folder / "sub" / "code").read_text() == "code"
    assert folder.parent.name == folder.name[:2]
    assert all(store.find(key) is not None for key in (KEY, OTHER))


def test_second_add_builds_nothing(tmp_path):
    store = KernelStore(tmp_path)
    folder = store.add({KEY: "s"}, write)
    store.forget(KEY)
    assert store.find(KEY) is None
    assert store.add({KEY: "s"}, lambda _: pytest.fail("built again")) == folder
    assert store.find(KEY) is not None


@pytest.mark.parametrize("harm", ["cut", "remove", "contents", "pointer", "pointer text", "pointer type"])
def test_damage_is_a_miss_and_is_mended(tmp_path, harm):
    store = KernelStore(tmp_path)
    folder = store.add({KEY: "s"}, write)
    pointer = tmp_path / "kernels" / KEY[:2] / f"{KEY}.json"
    if harm == "cut":
        (folder / "sub" / "code").write_text("co")
    elif harm == "remove":
        (folder / "sub" / "code").unlink()
    elif harm == "contents":
        (folder / "contents.json").write_text("{")
    elif harm == "pointer":
        pointer.unlink()
    elif harm == "pointer text":
        pointer.write_bytes(b"\xff\x00")
    else:
        pointer.write_text('{"unit": "../../etc", "source": 3}')
    assert store.find(KEY) is None
    store.add({KEY: "s"}, write)
    assert store.find(KEY) is not None


def test_failed_build_leaves_nothing(tmp_path):
    store = KernelStore(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.add({KEY: "s"}, fail)
    assert store.find(KEY) is None
    assert [path for path in (tmp_path / "kernels").rglob("*") if path.is_file()] == []
    store.add({KEY: "s"}, write)


def build_in_process(root: str, count: str) -> None:
    def build(folder: Path) -> None:
        with open(count, "a") as stream:
            stream.write("built\n")
        write(folder)

    KernelStore(Path(root)).add({KEY: "s"}, build)


def test_eight_processes_build_once(tmp_path):
    count = tmp_path / "count"
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=build_in_process, args=(str(tmp_path / "store"), str(count))) for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert count.read_text() == "built\n"
    assert KernelStore(tmp_path / "store").find(KEY) is not None


def test_lock_that_is_not_released(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        entered.set()
        leave.wait(300)
        write(folder)

    holder = threading.Thread(target=lambda: KernelStore(tmp_path).add({KEY: "s"}, slow))
    holder.start()
    assert entered.wait(300)
    try:
        with pytest.raises(CacheError, match="build_timeout"):
            KernelStore(tmp_path, lock_timeout=0.1).add({KEY: "s"}, write)
    finally:
        leave.set()
        holder.join()


def test_sweep_removes_what_killed_builds_left(tmp_path):
    store = KernelStore(tmp_path)
    folder = store.add({KEY: "s"}, write)
    old, young = folder.parent / ".old.1.tmp", folder.parent / ".young.1.tmp"
    old.mkdir()
    young.mkdir()
    os.utime(old, (1, 1))
    assert sweep(tmp_path) == 1
    assert not old.exists() and young.exists() and store.find(KEY) is not None


def test_root_follows_the_option(tmp_path, clean_environment):
    assert cache_root(Settings(cache_dir=str(tmp_path))) == tmp_path
    assert cache_root(Settings()).name == "polyfuse"
    clean_environment.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "new"))
    assert writable_root(Settings.resolve()) == tmp_path / "new"


def test_unwritable_root_falls_back_with_one_warning(tmp_path, warnings_seen):
    (tmp_path / "file").touch()
    settings = Settings(cache_dir=str(tmp_path / "file" / "cache"))
    first, second = writable_root(settings), writable_root(settings)
    assert first == second and first.is_dir()
    (warning,) = warnings_seen()
    assert "cache_dir" in warning


def test_cache_off_uses_a_folder_of_the_process(tmp_path):
    root = writable_root(Settings(cache=False, cache_dir=str(tmp_path)))
    assert root != tmp_path and root.is_dir()


def test_keys():
    assert kernel_key(source("a", "one").key, "toy", {}) == kernel_key(source("a", "two").key, "toy", {})
    assert kernel_key(source("a").key, "toy", {"cc": "1"}) != kernel_key(source("a").key, "toy", {"cc": "2"})
    assert kernel_key(source("a").key, "toy", {}) != kernel_key(source("a").key, "other", {})
    assert unit_key([KEY, OTHER]) == unit_key([OTHER, KEY]) != unit_key([KEY])


def test_graphs_are_seen_once(tmp_path):
    address = graph_key("code", ["float32 [3]"], "options")
    assert [KernelStore(tmp_path).seen(address) for _ in range(3)] == [False, True, True]
    assert not KernelStore(tmp_path).seen(graph_key("code", ["float32 [4]"], "options"))
    assert not KernelStore(tmp_path / "other").seen(address)


def test_a_folder_that_cannot_be_written_has_seen_nothing(tmp_path):
    (tmp_path / "graphs").write_text("a file where a folder should be")
    assert [KernelStore(tmp_path).seen("ab" * 16) for _ in range(2)] == [False, False]


def test_a_unit_that_another_process_publishes_meanwhile_is_whole(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "unit"
    kernels = {KEY: "s1"}
    read, times = units.read_record, []

    def published_late(path):
        times.append(path)
        if len(times) > 1:
            return read(path)
        folder.mkdir()
        (folder / "kernel.txt").write_text("x")
        units.seal_unit(folder, kernels)
        return {}

    monkeypatch.setattr(units, "read_record", published_late)
    assert units.unit_kernels(folder) == kernels
    assert "not what was built" not in caplog.text
