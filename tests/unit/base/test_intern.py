"""Interned objects: one for equal keys, and none that nobody holds."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from polyfuse.base.intern import InternTable
from polyfuse.ir import expr
from polyfuse.ir.expr import apply, const, load
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, index


class Thing:
    """Something that can be held weakly."""


def test_equal_keys_give_one_object_while_it_is_held() -> None:
    table = InternTable[Thing]()
    first = table.add("a", Thing())
    assert table.find("a") is first and table.add("a", Thing()) is first
    del first
    gc.collect()
    assert table.find("a") is None and len(table) == 0


def test_a_late_drop_leaves_a_newer_object() -> None:
    table = InternTable[Thing]()
    old = table.add("a", Thing())
    held = table._held["a"]
    del table._held["a"]
    new = table.add("a", Thing())
    table._drop(held)
    assert len(table) == 1 and table.find("a") is new and old is not new


def test_threads_agree() -> None:
    table, found, start = InternTable[Thing](), list[Thing](), threading.Barrier(8)

    def add() -> None:
        start.wait()
        found.append(table.add("a", Thing()))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


class Key:
    """A key that is equal to all of its kind; `hashed` runs at each look-up, as other threads may."""

    hashed: Callable[[], None] = staticmethod(lambda: None)

    def __hash__(self) -> int:
        self.hashed()
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key)


def test_an_object_that_dies_takes_no_newer_one_along(monkeypatch: pytest.MonkeyPatch) -> None:
    table, newer = InternTable[Thing](), list[Thing]()
    held = table.add(Key(), Thing())
    times = iter(range(100))

    def hashed() -> None:
        if next(times) == 1:  # while the entry of what died is looked up to be removed
            newer.append(table.add(Key(), Thing()))

    monkeypatch.setattr(Key, "hashed", staticmethod(hashed))
    del held
    monkeypatch.setattr(Key, "hashed", staticmethod(lambda: None))
    if not newer:
        newer.append(table.add(Key(), Thing()))
    assert table.find(Key()) is newer[0] and len(table) == 1


def test_expressions_and_indices_do_not_pile_up() -> None:
    gc.collect()
    before = len(expr._INTERN), len(index._INDICES), len(index._ATOMS)
    for size in range(1000, 3000):
        at = axis("i0", size) * 3 + size
        value = apply("add", load("buf", at, DType.f32), const(float(size), DType.f32))
        assert value is apply("add", load("buf", at, DType.f32), const(float(size), DType.f32))
    del at, value
    gc.collect()
    after = len(expr._INTERN), len(index._INDICES), len(index._ATOMS)
    assert all(now - then < 50 for now, then in zip(after, before, strict=True))
