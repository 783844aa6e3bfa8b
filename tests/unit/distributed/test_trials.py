"""Trials that ranks on other hosts run for the one that compiles; ranks are threads, times made up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from polyfuse.autotune.candidate import BuiltProgram, KernelStep, Problem
from polyfuse.autotune.search import TrialBatch, TrialRules
from polyfuse.distributed import trials
from polyfuse.distributed.trials import TrialHelpers, opened, sealed, serve
from polyfuse.runtime.ranks import claims
from polyfuse.runtime.ranks.claims import Claim, Claims
from polyfuse.torch_compat.groups import SharedStore
from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)

SECRET = b"a secret of this program"
RULES = TrialRules()


class Folder:
    """A rank's folder, and what brings kernels there."""

    def __init__(self, name: str, lacks: str = "") -> None:
        self.name, self.lacks, self.flushed = name, lacks, 0

    def flush(self) -> None:
        self.flushed += 1

    def fetch_unit(self, unit: str) -> str | None:
        return None if unit == self.lacks else f"{self.name}/{unit}"


def batch(number: int) -> TrialBatch:
    step = KernelStep("cpp", f"first/ab/unit{number}", "key", ())
    programs = tuple(BuiltProgram(f"program {number} {n}", (step,)) for n in range(2))
    return TrialBatch(Problem(f"problem {number}", "cpu", "cpp", ()), programs, RULES)


def timed(where: str, asked: TrialBatch) -> dict[str, float | str]:
    """The time of each, and where it was run."""
    assert all(step.folder.startswith(where) for p in asked.programs for step in p.steps), (
        "not its own kernels"
    )
    return {program.name: f"{where} {program.name}" for program in asked.programs}


@contextmanager
def waiting(store: SharedStore, helpers: dict[str, Any]) -> Iterator[Claim]:
    """The claim of rank 0, for which others wait, by the names of their hosts."""

    def help(number: int, host: str, run: Any) -> None:
        rank = Claims(store, number, 9, f"folder {number}", "x", assumed=True)
        with rank.making("key", 30, lambda: None, (host, run)) as claim:
            assert claim is None

    with (
        ThreadPoolExecutor() as threads,
        Claims(store, 0, 9, "folder 0", "x", assumed=True).making("key", 30, lambda: None) as claim,
    ):
        assert claim is not None
        for number, (where, run) in enumerate(helpers.items(), 1):
            found = threads.submit(help, number, where, run)
            while len(claim.helpers()) < number:
                assert not found.done()
        yield claim


def helper(name: str, lacks: str = "") -> Any:
    return partial(serve, secret=SECRET, store=Folder(name, lacks), run=partial(timed, name))


@pytest.fixture
def store() -> SharedStore:
    return SharedStore(dist.HashStore())


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_problems_are_divided_and_each_is_timed_once(store: SharedStore, count: int) -> None:
    batches = [batch(n) for n in range(count)]
    here = Folder("first")
    with waiting(store, {"host b": helper("b"), "host c": helper("c")}) as claim:
        shared = TrialHelpers(claim, here, SECRET)  # type: ignore[arg-type]
        for _ in range(2):  # rounds
            sent = shared.share(batches, 30)
            assert sorted(sent) == [n for n in range(count) if n % 3 and count > 1]
            for number, outcome in sent.items():
                where = "bc"[number % 3 - 1]
                assert outcome() == timed(where, _moved(batches[number], where))
    assert here.flushed == (2 if count > 1 else 0), "kernels come first"


def _moved(asked: TrialBatch, where: str) -> TrialBatch:
    steps = tuple(KernelStep("cpp", f"{where}/x", "key", ()) for _ in (0,))
    return TrialBatch(asked.problem, tuple(BuiltProgram(p.name, steps) for p in asked.programs), RULES)


def test_one_rank_of_each_other_host_helps(store: SharedStore) -> None:
    assert trials.host()
    with waiting(store, {trials.host(): helper("a")}) as claim:
        assert TrialHelpers(claim, Folder("first"), SECRET).share([batch(0), batch(1)], 30) == {}  # type: ignore[arg-type]


def test_what_a_helper_cannot_time_is_timed_here(store: SharedStore) -> None:
    with waiting(store, {"host b": helper("b", lacks="unit1")}) as claim:
        sent = TrialHelpers(claim, Folder("first"), SECRET).share([batch(n) for n in range(4)], 30)  # type: ignore[arg-type]
        assert sent[1]() is None
        assert sent[3]() == timed("b", _moved(batch(3), "b"))


def test_a_helper_that_does_not_answer_is_not_waited_for(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def slow(content: bytes) -> bytes:
        end.wait(20)
        return sealed(b"", SECRET)

    with waiting(store, {"host b": slow}) as claim:
        shared = TrialHelpers(claim, Folder("first"), SECRET)  # type: ignore[arg-type]
        assert shared.share([batch(0), batch(1)], 0.1)[1]() is None
        monkeypatch.setattr(claims, "_SILENT", 0.0)
        assert shared.share([batch(0), batch(1)], 30)[1]() is None
        end.set()


def test_requests_are_sealed() -> None:
    assert opened(sealed(b"content", SECRET), SECRET) == b"content"
    for wrong in (b"", b"content", sealed(b"content", b"another"), sealed(b"content", SECRET) + b"x"):
        with pytest.raises(ValueError, match="damaged"):
            opened(wrong, SECRET)
