"""The allocator's setting is changed for a time, and everything else that was set stays."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from polyfuse.torch_compat.devices.pools import allocation_history, growing_segments, pool_blocks


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was set, in order; at first nothing."""
    texts = [""]
    for name, value in {
        "_cuda_getAllocatorBackend": lambda: "native",
        "_accelerator_getAllocatorSettings": lambda: texts[-1],
        "_accelerator_setAllocatorSettings": texts.append,
    }.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(torch.version, "hip", None)
    return texts


@pytest.mark.parametrize(
    ("before", "others"),
    [
        ("", ""),
        ("max_split_size_mb:64", "max_split_size_mb:64,"),
        ("expandable_segments:False, backend:native", "backend:native,"),
        (
            "roundup_power2_divisions:[256:1,>:2],expandable_segments:False",
            "roundup_power2_divisions:[256:1,>:2],",
        ),
    ],
)
def test_it_grows_inside_alone(said: list[str], before: str, others: str) -> None:
    said.append(before)
    for _ in range(2):
        with growing_segments("cuda"):
            assert said[-1] == f"{others}expandable_segments:True"
        assert said[-1] == f"{others}expandable_segments:False"


def test_what_another_thread_sets_meanwhile_stays(said: list[str]) -> None:
    with growing_segments("cuda"):
        said.append("max_split_size_mb:64,expandable_segments:True")
    assert said[-1] == "max_split_size_mb:64,expandable_segments:False"


def test_recordings_of_several_threads_end_without(said: list[str]) -> None:
    inside, go, found = threading.Barrier(3), threading.Event(), list[str]()

    def record() -> None:
        with growing_segments("cuda"):
            found.append(said[-1])
            inside.wait()
            go.wait()

    threads = [threading.Thread(target=record) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    go.set()
    for thread in threads:
        thread.join()
    assert found == ["expandable_segments:True"] * 2
    assert said[-1] == "expandable_segments:False"


def test_after_an_error(said: list[str]) -> None:
    with pytest.raises(ValueError, match="inside"), growing_segments("cuda"):
        raise ValueError("inside")
    assert said[-1] == "expandable_segments:False"


def test_those_that_grow_anyway_go_on(said: list[str]) -> None:
    said.append("garbage_collection_threshold:0.5,expandable_segments:True")
    with growing_segments("cuda"):
        pass
    assert len(said) == 2


def test_known_from_a_snapshot(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 says it nowhere else."""
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings")
    found = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}}
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", lambda where: found, raising=False)
    with growing_segments("cuda"):
        assert said[-1] == "max_split_size_mb:64,expandable_segments:True"


@pytest.mark.parametrize("lacking", ["backend", "platform", "settings", "snapshot"])
def test_where_it_cannot_be_changed(said: list[str], monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    if lacking == "backend":
        monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "cudaMallocAsync")
    elif lacking == "platform":
        monkeypatch.setattr("sys.platform", "win32")
    elif lacking == "settings":
        monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    else:
        monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings")
        monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", lambda where: {}, raising=False)
    with growing_segments("cuda"):
        pass
    assert said == [""]


def test_blocks_of_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def segment(kind: str, device: int, *blocks: tuple[int, int, str]) -> dict[str, Any]:
        rows = [{"address": a, "size": n, "state": state} for a, n, state in blocks]
        return {"segment_type": kind, "device": device, "blocks": rows}

    def snapshot(where: tuple[int, int, bool]) -> Any:
        assert where == (0, 7, False)
        first = segment("large", 0, (5000, 10, "inactive"), (5010, 20, "active_allocated"))
        second = segment("large", 0, (1000, 30, "active_awaiting_free"))
        return {"segments": [first, segment("small", 0, (1, 2, "inactive")), segment("large", 1), second]}

    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", snapshot, raising=False)
    found = pool_blocks("cuda", 0, (0, 7))
    assert found == [(1000, 30, True), (5000, 10, False), (5010, 20, True)]


def test_history_is_recorded_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    entries = [
        {"action": "alloc", "addr": 64, "size": 10, "stream": 3},
        {"action": "segment_map", "addr": 64, "size": 4096, "stream": 3},
        {"action": "alloc", "addr": 128, "size": 20, "stream": 4},
        {"action": "free_requested", "addr": 64, "size": 10, "stream": 3},
        {"action": "free_completed", "addr": 64, "size": 10, "stream": 3},
    ]
    enabled = [False]
    for name, value in {
        "_cuda_isHistoryEnabled": lambda: enabled[0],
        "_cuda_memorySnapshot": lambda where: {"device_traces": [[], entries]},
    }.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda how, **others: said.append((how, others))
    )
    with allocation_history("cuda", 1, 3) as history:
        assert history == []
    assert history == [(True, 64, 10), (False, 64, 10)]
    assert [how for how, _ in said] == ["all", None] and said[0][1]["context"] is None
    with pytest.raises(ValueError, match="inside"), allocation_history("cuda", 1, 3):
        raise ValueError("inside")
    assert said[-1][0] is None
    # what somebody has recorded is not disturbed
    enabled[0] = True
    with allocation_history("cuda", 1, 3) as history:
        assert history is None
    assert len(said) == 4
