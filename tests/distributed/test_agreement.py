"""Two processes that compile different things get an error each, or go on where that is meant."""

from __future__ import annotations

import json

import pytest

from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)

from distributed import disagreeing
from distributed.ranks import run_ranks

pytestmark = pytest.mark.slow

EXPECTED = {
    "another_collective": ("collective 1 of", "rank 0 runs all_reduce", "rank 1 runs all_gather_into_tensor"),
    "another_order": ("collective 1 of", "in total", "in gathered", "disagreeing.py"),
    "one_more": ("collective 2 of", "rank 0 runs no collective more", "in gathered"),
    "another_size": ("4 x float32", "5 x float32"),
    "another_type": ("4 x float32", "4 x float64"),
    "another_option": ("different options", "numerics='eager'"),
    "other_backends": ("different options", "'cpp'"),
    "another_version": ("different versions", "Polyfuse 1.0", "Polyfuse 1.1"),
    "a_backward_that_differs": ("collective 1 of", "backward"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What became of each case, in each process."""
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_ranks("distributed.disagreeing", 2, folder, str(folder / "answers"))
    assert [run.returncode for run in ended] == [0, 0], [run.stdout + run.stderr for run in ended]
    return [json.loads((folder / f"answers{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_difference_is_an_error_on_both_ranks(name: str, answers: list[dict[str, str]]) -> None:
    for answer in answers:
        assert answer[name].startswith("RankError: ranks 0 and 1 "), answer[name]
        assert [part for part in EXPECTED[name] if part not in answer[name]] == [], answer[name]


def test_a_rank_that_cannot_compile_takes_the_other_along(answers: list[dict[str, str]]) -> None:
    other, failed = (answer["a_compile_that_fails"] for answer in answers)
    assert other.startswith("RankError: rank 1 failed") and "RuntimeError: planted" in other
    assert "planted" in failed


@pytest.mark.parametrize("case", disagreeing.MEANT, ids=lambda case: case.__name__)
def test_what_is_meant_to_differ_runs(case: object, answers: list[dict[str, str]]) -> None:
    name = case.__name__  # type: ignore[attr-defined]
    assert [answer[name] for answer in answers] == ["fine", "fine"]


def test_every_mistake_is_expected() -> None:
    names = {case.__name__ for case in disagreeing.MISTAKES}
    assert names == {*EXPECTED, "a_compile_that_fails"}
