"""Four ranks with one program lower each graph once, and build no kernel twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from polyfuse.cache.units import unit_kernels
from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)

from distributed import capturing
from distributed.ranks import run_ranks

pytestmark = pytest.mark.slow

RANKS = 4


def compiled_by_ranks(
    folder: Path, mode: str = "", folders: int = 1, ranks: int = RANKS, times: str = "", **changes: str
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """What each rank counted, and how often each kernel was built."""
    given = str(folder / "answers"), mode, str(folders), times
    ended = run_ranks("distributed.compiling_once", ranks, folder, *given, **changes)
    assert [run.returncode for run in ended] == [0] * ranks, [run.stderr for run in ended]
    answers = [json.loads((folder / f"answers{rank}").read_text()) for rank in range(ranks)]
    units = (unit_kernels(path) for path in folder.glob("cache*/kernels/*/*") if path.is_dir())
    return answers, Counter(key for unit in units if unit for key in unit)


def test_graphs_are_lowered_by_one_rank(tmp_path: Path) -> None:
    answers, kernels = compiled_by_ranks(tmp_path)
    # the function, and the network's forward and backward
    assert sum(answer["lowered"] for answer in answers) == 3
    assert sum(answer["misses"] for answer in answers) == 2
    assert sum(answer["hits"] for answer in answers) == 2 * (RANKS - 1)
    assert kernels and set(kernels.values()) == {1}
    assert len({answer["sum"] for answer in answers}) == 1


def test_functions_are_traced_by_one_rank(tmp_path: Path) -> None:
    answers, kernels = compiled_by_ranks(tmp_path, POLYFUSE_CAPTURE_CACHE="1")
    # a function that depends on a group of processes is traced by each
    assert sorted(answer["traced"] for answer in answers) == [1] * (RANKS - 1) + [2]
    assert sum(answer["captured"] for answer in answers) == RANKS - 1
    assert kernels and set(kernels.values()) == {1}
    assert len({answer["sum"] for answer in answers}) == 1


def test_ranks_that_autotune_decide_alike(tmp_path: Path) -> None:
    answers, kernels = compiled_by_ranks(tmp_path, "max-autotune")
    assert kernels and set(kernels.values()) == {1}
    assert any(answer["problems"] for answer in answers) and answers[0]["decided"]
    assert all(answer["decided"] == answers[0]["decided"] for answer in answers)


@pytest.mark.parametrize(("ranks", "folders"), [(2, 2), (4, 4), (4, 2)])
def test_ranks_without_a_common_folder_give_each_other_graphs(
    tmp_path: Path, ranks: int, folders: int
) -> None:
    answers, kernels = compiled_by_ranks(tmp_path, folders=folders, ranks=ranks)
    assert sum(answer["lowered"] for answer in answers) == 3
    assert sum(answer["misses"] for answer in answers) == 2
    assert sum(answer["hits"] for answer in answers) == 2 * (ranks - 1)
    # each is built once, and then lies in each folder
    assert kernels and set(kernels.values()) == {folders}
    assert sum(answer["builds"] for answer in answers) == len(kernels)
    assert len({answer["sum"] for answer in answers}) == 1


@pytest.mark.parametrize(("ranks", "times"), [(2, ""), (4, "made up")])
def test_ranks_on_several_hosts_divide_trials_and_decide_alike(
    tmp_path: Path, ranks: int, times: str
) -> None:
    answers, kernels = compiled_by_ranks(tmp_path, "max-autotune", folders=ranks, ranks=ranks, times=times)
    assert sum(answer["builds"] for answer in answers) == len(kernels)
    assert sum(bool(answer["helped"]) for answer in answers) >= ranks - 1
    assert any(answer["problems"] for answer in answers) and answers[0]["decided"]
    assert all(answer["decided"] == answers[0]["decided"] for answer in answers)


def test_the_exchange_between_ranks_can_be_turned_off(tmp_path: Path) -> None:
    answers, _ = compiled_by_ranks(tmp_path, folders=2, ranks=2, POLYFUSE_RANK_EXCHANGE="0")
    assert [answer["misses"] for answer in answers] == [2, 2]


@pytest.fixture(scope="module")
def traced_by_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank traced of wrapped networks, and of those in processes that start after them."""
    folder = tmp_path_factory.mktemp("capturing")
    answers = []
    for number in range(2):
        own = folder / str(number)
        own.mkdir()
        changes = {"POLYFUSE_CAPTURE_CACHE": "1", "POLYFUSE_CACHE_DIR": str(folder / "cache")}
        ended = run_ranks("distributed.capturing", 2, own, str(own / "answers"), **changes)
        assert [run.returncode for run in ended] == [0, 0], [run.stderr for run in ended]
        answers += [json.loads((own / f"answers{rank}").read_text()) for rank in range(2)]
    return answers


@pytest.mark.parametrize("case", capturing.CASES, ids=lambda case: case.__name__)
def test_wrapped_networks_are_traced_by_one_rank(case: Any, traced_by_ranks: list[dict[str, Any]]) -> None:
    first, second, *later = (answer[case.__name__] for answer in traced_by_ranks)
    # a block whose input needs no gradient, and one whose input does; each traced by one of the two
    assert first["traced"] + second["traced"] == 2
    assert [answer["traced"] for answer in later] == [0, 0]
    assert all(answer["captured"] for answer in later)
    assert not first["bypasses"] and not second["bypasses"]


def test_graphs_that_all_ranks_trace_are_lowered_by_one(traced_by_ranks: list[dict[str, Any]]) -> None:
    first, second, *later = (answer["tensor_parallel"] for answer in traced_by_ranks)
    assert first["traced"] == second["traced"] == 1
    assert first["bypasses"] and second["bypasses"]
    # a forward and a backward, each lowered by one rank and found by the other
    assert first["found"] + second["found"] == 2
    assert [answer["found"] for answer in later] == [2, 2]
