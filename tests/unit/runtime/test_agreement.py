"""Ranks that compare what they are about to communicate; here they are threads over one dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from polyfuse.base.errors import RankError
from polyfuse.runtime.ranks import agreement as subject
from polyfuse.runtime.ranks.agreement import Agreement, tell_failure
from polyfuse.runtime.ranks.collectives import CollectiveRow, difference, row_of

FACTS = {"versions": "1"}


def row(op: str, group: str = "0", numel: int | None = 4, source: str = "model.py, line 3") -> CollectiveRow:
    return row_of(f"_c10d_functional.{op}.default", group, ("sum", group), "float32", numel, source)


@dataclass
class World:
    """Ranks in threads; how many collectives each has started is up to the test."""

    positions: dict[int, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    patience: float = 5.0
    local: threading.local = field(default_factory=threading.local)

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text

    def find(self, key: str) -> str | None:
        return self.texts.get(key)

    def group(self, name: str = "") -> Any:
        world, rank = self, self.local.rank

        class Group:
            ranks, store = (0, 1), world

            def __init__(self) -> None:
                self.name = name or "0"

            def position(self) -> int:
                return world.positions.get(rank, 0)

        return Group()

    def run(self, *ranks: Callable[[], Any]) -> list[str]:
        """What became of each rank."""
        found = [""] * len(ranks)

        def act(rank: int) -> None:
            self.local.rank = rank
            try:
                found[rank] = str(ranks[rank]())
            except RankError as error:
                found[rank] = f"RankError: {error}"

        threads = [threading.Thread(target=act, args=(rank,)) for rank in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(subject, "this_rank", lambda: made.local.rank)
    monkeypatch.setattr(subject, "group_of", made.group)
    monkeypatch.setattr(subject, "group_names", lambda: ("0",))
    monkeypatch.setattr(subject, "_met", {0, 1})
    monkeypatch.setattr(subject, "_covered", {})
    return made


def graph(
    *rows: CollectiveRow, seconds: float = 0.1, facts: dict[str, str] | None = None
) -> Callable[[], str]:
    agreement = Agreement(facts or FACTS, seconds)
    return lambda: agreement.around(rows, "forward", lambda: "ran")


def test_equal_ranks_run(world: World) -> None:
    assert world.run(*[graph(row("all_reduce"), row("broadcast"), seconds=60)] * 2) == ["ran", "ran"]


def test_a_size_that_varies_fits_any(world: World) -> None:
    ranks = graph(row("all_reduce", numel=None), seconds=60), graph(row("all_reduce", numel=8), seconds=60)
    assert world.run(*ranks) == ["ran", "ran"]


def test_sizes_of_messages_to_each_process_may_differ(world: World) -> None:
    ranks = [graph(row("all_to_all_single", numel=n), seconds=60) for n in (3, 5)]
    assert world.run(*ranks) == ["ran", "ran"]


def test_both_ranks_report_a_difference(world: World) -> None:
    first, second = graph(row("all_reduce"), seconds=60), graph(row("broadcast", source="b.py"), seconds=60)
    for answer in world.run(first, second):
        assert "ranks 0 and 1 do not agree on collective 1" in answer
        assert "rank 0 runs all_reduce(sum, 4 x float32) at model.py, line 3 in forward" in answer
        assert "rank 1 runs broadcast(sum, 4 x float32) at b.py in forward" in answer


def test_other_versions_are_reported(world: World) -> None:
    ranks = [graph(row("all_reduce"), seconds=60, facts={"versions": v}) for v in "12"]
    for answer in world.run(*ranks):
        assert "different versions: 1 on rank 0, 2 on rank 1" in answer


def test_a_rank_elsewhere_is_not_compared(world: World) -> None:
    world.positions = {0: 3, 1: 4}
    assert world.run(graph(row("all_reduce")), graph(row("broadcast"))) == ["ran", "ran"]


def test_a_rank_that_has_left_is_not_compared(world: World) -> None:
    assert world.run(graph(row("all_reduce"))) == ["ran"]
    assert world.run(lambda: "", graph(row("broadcast")))[1] == "ran"


def test_a_failure_elsewhere_ends_the_wait(world: World) -> None:
    ranks: Sequence[Callable[[], Any]] = (
        graph(row("all_reduce"), seconds=60),
        lambda: tell_failure(ValueError("no")),
    )
    assert world.run(*ranks)[0].startswith("RankError: rank 1 failed where rank 0 needs it")


def test_an_old_failure_is_forgotten(world: World) -> None:
    world.run(lambda: "", lambda: tell_failure(ValueError("no")))
    world.positions = {0: 7, 1: 7}
    assert world.run(graph(row("all_reduce"))) == ["ran"]


def test_nothing_is_compared_without_seconds(world: World) -> None:
    assert world.run(graph(row("all_reduce"), seconds=0), graph(row("broadcast"), seconds=0)) == [
        "ran",
        "ran",
    ]
    assert not world.texts


def test_the_first_difference_is_found() -> None:
    one, two = [row("all_reduce"), row("broadcast")], [row("all_reduce")]
    assert difference(one, two) == (1, one[1], None)
    assert difference(one, one) is None
