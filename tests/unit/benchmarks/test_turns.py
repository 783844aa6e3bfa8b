"""Rows that are prepared side by side are timed one by one, when all are prepared."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys

from polyfuse_bench.child import child_environment
from polyfuse_bench.turns import run_together, turn

PREPARED_AT_ONCE = """
import sys, time
from polyfuse_bench.turns import turn
time.sleep(float(sys.argv[1]))
prepared = time.monotonic()
with turn():
    began = time.monotonic()
    time.sleep(0.05)
    print(prepared, began, time.monotonic())
"""


def _row(seconds: float) -> list[float]:
    command = [sys.executable, "-c", PREPARED_AT_ONCE, str(seconds)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def test_none_is_timed_before_all_are_prepared_nor_beside_another() -> None:
    rows = list(run_together([functools.partial(_row, s) for s in (0.2, 0.0, 0.1)]))
    assert min(began for _, began, _ in rows) >= max(prepared for prepared, _, _ in rows)
    spans = sorted((began, ended) for _, began, ended in rows)
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))


def test_a_row_that_fails_holds_up_nobody() -> None:
    def fails() -> list[float]:
        return []

    rows = list(run_together([functools.partial(_row, 0.0), fails]))
    assert len(rows[0]) == 3 and rows[1] == []


def test_a_row_alone_waits_for_nothing() -> None:
    with turn():
        pass
