"""The limit of the cache folder: what goes, what stays, and several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from polyfuse.cache import GraphFolder, KernelStore, kernel_key
from polyfuse.cache.artifacts import CONTENTS, artifacts
from polyfuse.cache.limit import Trimmed, sweep, trim, trim_if_due
from toy_backend import source

SIZE = 1000


def build(folder: Path) -> None:
    (folder / "code").write_bytes(bytes(SIZE))


def fill(root: Path, names: str) -> list[str]:
    """Units of one kernel each, used one after the other, long ago."""
    keys = [kernel_key(source(name).key, "toy", {}) for name in names]
    for age, key in enumerate(keys):
        folder = KernelStore(root).add({key: key}, build)
        os.utime(folder / CONTENTS, (1000 + age, 1000 + age))
    return keys


def held(root: Path, keys: list[str]) -> list[bool]:
    return [KernelStore(root).find(key) is not None for key in keys]


def unit_size(root: Path) -> int:
    return next(artifacts(root, "kernels")).size


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    keys = fill(tmp_path, "abcd")
    assert KernelStore(tmp_path).find(keys[0]) is not None, "it is used again"
    one = unit_size(tmp_path)
    assert trim(tmp_path, 3 * one) == Trimmed(2, 2 * one, 2 * one), "a tenth of the limit is free again"
    assert held(tmp_path, keys) == [True, False, False, True]
    files = sorted(path.name for path in (tmp_path / "kernels").rglob("*.json"))
    assert files == sorted([CONTENTS, CONTENTS, f"{keys[0]}.json", f"{keys[3]}.json"]), (
        "nothing points nowhere"
    )


def test_graphs_and_kernels_are_counted_together(tmp_path):
    keys = fill(tmp_path, "ab")
    folder = GraphFolder(tmp_path)
    (folder.path / "graph").mkdir(parents=True)
    (folder.path / "graph" / "entry").write_bytes(bytes(SIZE))
    os.utime(folder.path / "graph", (1, 1))
    trim(tmp_path, 2 * unit_size(tmp_path) + SIZE // 2)
    assert not folder.holds("graph") and sum(held(tmp_path, keys)) == 2
    (folder.path / "graph").mkdir()
    os.utime(folder.path / "graph", (1, 1))
    folder.mend("graph", str)
    (graph,) = artifacts(tmp_path, "compiled")
    assert graph.used > time.time() - 60, "looking it up is a use"


def test_within_the_limit_all_stays(tmp_path):
    keys = fill(tmp_path, "ab")
    total = 2 * unit_size(tmp_path)
    assert trim(tmp_path, total) == Trimmed(0, 0, total)
    assert held(tmp_path, keys) == [True, True]
    assert trim(tmp_path / "none", 1) == Trimmed(0, 0, 0)


def test_what_is_in_use_stays_whatever_its_size(tmp_path):
    keys = fill(tmp_path, "ab")
    assert held(tmp_path, keys) == [True, True]
    assert trim(tmp_path, 1).removed == 0
    assert trim(tmp_path, 1, spared=0.0).removed == 2
    assert held(tmp_path, keys) == [False, False]


def test_a_unit_without_its_list_of_kernels_can_be_removed(tmp_path):
    (key,) = fill(tmp_path, "a")
    (unit,) = artifacts(tmp_path, "kernels")
    (unit.path / CONTENTS).write_text("[]")
    unit.remove()
    assert held(tmp_path, [key]) == [False]
    KernelStore(tmp_path).add({key: key}, build)
    assert held(tmp_path, [key]) == [True]


def test_adding_trims_once_in_a_while(tmp_path):
    old = fill(tmp_path, "ab")
    store = KernelStore(tmp_path, limit=unit_size(tmp_path))
    gone, there = [False, False], [True, True]
    for name, limit, expected in (("c", 1, gone), ("d", 1000, there), ("e", 1, gone)):
        key = kernel_key(source(name).key, "toy", {})
        store.limit = limit * unit_size(tmp_path)  # much is left of a large one, so that nobody looks again
        store.add({key: key}, build)
        assert store.find(key) is not None
        assert held(tmp_path, old) == expected, name
        fill(tmp_path, "ab")
    os.utime(tmp_path / "trimmed", (1, 1))
    trim_if_due(tmp_path, 0)
    assert held(tmp_path, old) == [True, True], "without a limit nothing goes"


def test_trimming_never_fails(tmp_path):
    (tmp_path / "file").touch()
    trim_if_due(tmp_path / "file" / "in the way", 1)
    (tmp_path / "locks").touch()
    trim_if_due(tmp_path, 1)


def test_old_locks_are_swept(tmp_path):
    (tmp_path / "locks").mkdir()
    for name in ("old", "young"):
        (tmp_path / "locks" / f"{name}.lock").touch()
    os.utime(tmp_path / "locks" / "old.lock", (1, 1))
    assert sweep(tmp_path) == 1
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["young.lock"]


def add_and_find(root: str, rounds: int, wrong: multiprocessing.Value) -> None:
    store = KernelStore(Path(root))
    for round_ in range(rounds):
        key = kernel_key(source("abc"[round_ % 3]).key, "toy", {})
        folder = store.add({key: key}, build)
        location = store.find(key)
        # whoever finds it finds all of it, unless it was removed since
        try:
            whole = (location.folder if location is not None else folder).joinpath(
                "code"
            ).stat().st_size == SIZE
        except FileNotFoundError:
            whole = True
        if not whole:
            wrong.value += 1


def trim_again_and_again(root: str, rounds: int) -> None:
    for _ in range(rounds):
        trim(Path(root), 1, spared=0.0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_processes_that_add_while_others_trim(tmp_path, start):
    context = multiprocessing.get_context(start)
    wrong = context.Value("i", 0)
    users = [context.Process(target=add_and_find, args=(str(tmp_path), 60, wrong)) for _ in range(2)]
    trimmers = [context.Process(target=trim_again_and_again, args=(str(tmp_path), 60)) for _ in range(2)]
    for process in (*users, *trimmers):
        process.start()
    for process in (*users, *trimmers):
        process.join(300)
    assert [process.exitcode for process in (*users, *trimmers)] == [0] * 4 and wrong.value == 0
    leftovers = list(tmp_path.rglob(".*.tmp"))
    assert not leftovers
