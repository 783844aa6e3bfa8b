"""Cold and warm starts, one after another and side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from polyfuse_bench import campaigns, starts
from polyfuse_bench.backends import CACHE_VARIABLES
from polyfuse_bench.child import ChildFailed

TASKS = [{"kind": "compile", "name": name, "mode": "forward"} for name in ("a", "b", "c")]
BACKENDS = ("one", "two")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """What was started: the target, the backend and whether its caches were empty."""
    started: list[tuple[str, str, bool]] = []

    def run_child(task: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, float]:
        folders = [Path(environment[name]) for name in CACHE_VARIABLES]
        cold = not any(folder.exists() for folder in folders)
        started.append((task["name"], task["backend"], cold))
        if (task["name"], task["backend"]) == ("b", "two"):
            raise ChildFailed("it fell")
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        return {"first_call": 3.0 if cold else 1.0}

    monkeypatch.setattr(starts, "run_child", run_child)
    monkeypatch.setattr(starts, "keep_byte_code", lambda: None)
    return started


@pytest.mark.parametrize("together", [1, 2, 4, 16])
def test_each_warm_start_finds_what_its_cold_one_left(
    children: list[tuple[str, str, bool]], together: int
) -> None:
    rows = list(starts.start_rows(TASKS, BACKENDS, 2, together))
    for name, row in zip("abc", rows, strict=True):
        working = ["one"] if name == "b" else ["one", "two"]
        assert row["cold"] == dict.fromkeys(working, 3.0) and row["warm"] == dict.fromkeys(working, 1.0)
        assert row["cold_samples"] == {name: [3.0, 3.0] for name in working}
        assert row["failures"] == ({"two": "it fell"} if name == "b" else {})
    assert len(children) == 5 * 4 + 1


def test_rows_of_the_campaign_keep_their_targets(children: list[tuple[str, str, bool]]) -> None:
    chosen = campaigns.Selection(
        backends=("eager", *BACKENDS), only=("bert", "gpt2"), modes=("forward",), repeats=1, together=4
    )
    rows = [measure() for measure in campaigns.compile_time(chosen)]
    assert [row["name"] for row in rows] == ["bert", "gpt2"]
    assert all(set(row["cold"]) == set(row["warm"]) == set(BACKENDS) for row in rows)
    # all cold ones before the first warm one
    assert [cold for _, _, cold in children] == [True] * 4 + [False] * 4


def test_one_more_kernel_is_built_after_another(children: list[tuple[str, str, bool]]) -> None:
    chosen = campaigns.Selection(backends=campaigns.DEFAULT_BACKENDS, repeats=1)
    (row,) = [measure() for measure in campaigns.build(chosen)][:1]
    assert row["name"] == campaigns.BUILT[0] and set(row["cold"]) == set(campaigns.BUILDERS)
    tasks = [measure.args[1] for measure in campaigns.build(chosen)]
    assert all(task["after"] == campaigns.BUILT_AFTER != task["name"] for task in tasks)
