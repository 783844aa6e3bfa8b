"""The campaign of the start of a serving process: what is measured, and how the page says it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from polyfuse_bench import campaigns, child, report, report_serving, serving
from polyfuse_bench.backends import DEFAULT_BACKENDS
from polyfuse_bench.serving import CANDIDATES, NETWORKS, PARTS, total


def _start(**seconds: float) -> dict[str, dict[str, float]]:
    return {part: {"cpu": seconds.get(part.replace(" ", "_"), 0.0), "wall": 0.0} for part in PARTS}


ROW = {
    "name": "bert",
    "size": "tiny",
    "failures": {},
    "work": {"inductor": {"lowered": 0, "built": 1}, "polyfuse": {"lowered": 0, "built": 3}},
    "starts": {
        "eager": [_start(model=1.0)],
        "inductor": [_start(first_answer=4.0), _start(first_answer=6.0), _start(first_answer=8.0)],
        "polyfuse": [_start(import_polyfuse=1.0, first_answer=2.0, model=5.0)],
        "package": [_start(first_answer=0.3)],
    },
}


def test_medians_over_starts():
    assert total(ROW["starts"]["inductor"]) == 6.0
    assert total(ROW["starts"]["polyfuse"], ("model",)) == 5.0


def test_the_table(monkeypatch):
    monkeypatch.setattr(report_serving, "facts", lambda content: [])
    text = "\n".join(report_serving.serving_section({"rows": [ROW]}))
    assert "| bert, tiny | Inductor | 0 µs | 0 µs | 0 µs | 0 µs | 6 s | 0 µs | 6 s |  |  | 1 built |" in text
    assert (
        "| bert, tiny | Polyfuse | 0 µs | 0 µs | 1 s | 5 s | 2 s | 0 µs | 8 s | 0.33× | 1.40× | 0, 3 |"
        in text
    )
    assert "| bert, tiny | Polyfuse, from a package |" in text
    assert "eager 1 s, Inductor 6 s, Polyfuse 8 s" in report.one_line("serving", ROW)


def test_every_candidate_fills_the_caches_and_then_they_alternate(monkeypatch):
    asked: list[tuple[str, bool]] = []

    def answer(task, environment):
        asked.append((task["backend"], task["fill"]))
        if task["backend"] == "dynamo":
            raise child.ChildFailed("it cannot")
        return {"parts": _start(model=1.0), "lowered": int(task["backend"] == "polyfuse")}

    monkeypatch.setattr(child, "run_child", answer)
    monkeypatch.setattr("polyfuse_bench.compile_time.keep_byte_code", lambda: None)
    plan = campaigns.serving(campaigns.Selection(backends=DEFAULT_BACKENDS, repeats=2))
    assert len(plan) == len(NETWORKS)
    row = plan[0]()
    assert asked[: len(CANDIDATES)] == [(name, True) for name in CANDIDATES]
    assert asked[len(CANDIDATES) :] == 2 * [(name, False) for name in CANDIDATES if name != "dynamo"]
    assert row["failures"] == {"dynamo": "it cannot"} and len(row["starts"]["package"]) == 2
    assert row["work"]["polyfuse"] == {"lowered": 2, "built": 0} == {**row["work"]["package"], "lowered": 2}


def test_a_folder_that_is_full_is_not_filled_again(monkeypatch, tmp_path):
    asked: list[bool] = []

    def answer(task, environment):
        asked.append(task["fill"])
        return {"parts": _start(), "lowered": 0}

    monkeypatch.setattr(child, "run_child", answer)
    monkeypatch.setattr("polyfuse_bench.compile_time.keep_byte_code", lambda: None)
    task = {"name": "bert", "size": "tiny"}
    serving.serving_row(task, ("eager",), 0, str(tmp_path))
    serving.serving_row(task, ("eager",), 1, str(tmp_path))
    assert asked == [True, False]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_time_of_processes_that_run_counts():
    before = serving.cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as running:
        while serving.cpu_seconds() < before + 0.1:
            assert running.poll() is None
        assert sum(serving._running(serving.os.getpid())) > 0
        running.kill()
