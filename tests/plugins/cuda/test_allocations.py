"""What is known of torch's allocator of CUDA memory, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from polyfuse.runtime.devices.graphs import Event
from polyfuse_cuda import graphs as allocations
from polyfuse_cuda.graphs import CudaAllocations


def test_marks_are_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    mark = allocations._MARK

    @contextmanager
    def history(device_type: str, index: int, stream: int) -> Iterator[Any]:
        assert (device_type, index, stream) == ("cuda", 1, 77)
        found: list[tuple[bool, int, int]] = []
        yield found
        found += [(True, 1, mark), (False, 1, mark), (True, 2, 5000), (True, 1, mark), (False, 2, 5000)]

    monkeypatch.setattr(allocations, "allocation_history", history)
    monkeypatch.setattr(allocations, "current_stream", lambda device_type: lambda index: 77)
    monkeypatch.setattr(allocations, "clear_workspaces", seen.append)
    with CudaAllocations(1).watch() as watched:
        assert watched is not None and seen == ["cuda"] and not watched.events
    assert list(watched.events) == [
        Event("call"),
        Event("allocation", 2, 5000),
        Event("call"),
        Event("release", 2, 5000),
    ]


def test_who_records_a_history_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def history(*_: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(allocations, "allocation_history", history)
    monkeypatch.setattr(allocations, "current_stream", lambda device_type: lambda index: 77)
    with CudaAllocations(0).watch() as watched:
        assert watched is None


@pytest.mark.parametrize("error", [None, RuntimeError("no"), TypeError("no"), KeyError("segments")])
def test_torches_that_do_not_say_what_a_pool_is(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def blocks(device_type: str, index: int, pool: Any) -> list[tuple[int, int, bool]]:
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(allocations, "pool_blocks", blocks)
    assert CudaAllocations.are_known(0) == (error is None)
