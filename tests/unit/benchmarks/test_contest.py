"""A contest of backends goes on without one that fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from polyfuse_bench.contest import contest
from polyfuse_bench.timing import Effort

SHORT = Effort(rounds=3, min_sample_seconds=1e-4, warmup_seconds=1e-3)


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

    row = contest(("eager", "bad", "good"), prepare, SHORT)
    assert [timing["name"] for timing in row["timings"]] == ["eager", "good"]
    assert row["failures"] == {"bad": "RuntimeError: cannot be recorded"}
    assert row["errors"]["good"] == 0.0
