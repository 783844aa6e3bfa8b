"""A comparison of backends goes on without one that fails."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable

import pytest
import torch
from polyfuse_bench.model_timing import own_error, prepared_model
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

SHORT = Effort(rounds=3, min_sample_seconds=1e-4, warmup_seconds=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("good_calls", [0, 1, 2])
def test_one_that_fails_at_any_of_its_first_calls_is_left_out(good_calls: int) -> None:
    def prepare(name: str) -> Callable[[], torch.Tensor]:
        calls = 0

        def call() -> torch.Tensor:
            nonlocal calls
            calls += 1
            if name == "bad" and calls > good_calls:
                raise RuntimeError("cannot be recorded")
            return torch.ones(2)

        return call

    row = side_by_side(("eager", "bad", "good"), prepare, SHORT)
    assert [timing["name"] for timing in row["timings"]] == ["eager", "good"]
    assert row["failures"] == {"bad": "RuntimeError: cannot be recorded"}
    assert row["errors"]["good"] == 0.0


def test_where_all_fail_their_failures_are_the_row() -> None:
    def prepare(name: str) -> Callable[[], torch.Tensor]:
        raise RuntimeError(f"no {name}")

    row = side_by_side(("eager", "good"), prepare, SHORT)
    assert not row["timings"]
    assert row["failures"] == {"eager": "RuntimeError: no eager", "good": "RuntimeError: no good"}


def test_one_that_does_not_answer_in_time_is_left_out() -> None:
    def prepare(name: str) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            # each has the same limit, and on a busy machine a quick one may take any time
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60 or name != "endless"
            if name == "endless":
                signal.setitimer(signal.ITIMER_REAL, 0.01)
            while name == "endless":
                time.sleep(0.01)
            return torch.ones(2)

        return call

    row = side_by_side(("eager", "endless", "good"), prepare, dataclasses.replace(SHORT, patience=60))
    assert [timing["name"] for timing in row["timings"]] == ["eager", "good"]
    assert row["failures"] == {"endless": "TimeoutError: its first calls took longer than 60 seconds"}


def test_a_model_beside_itself_with_weights_moved_by_a_rounding() -> None:
    prepared = prepared_model({"name": "bert", "mode": "train", "size": "tiny"})
    before = [parameter.clone() for parameter in prepared.model.parameters()]
    assert 0 < own_error(prepared, "train") < 1e-3
    assert all(torch.equal(a, b) for a, b in zip(before, prepared.model.parameters(), strict=True))
