"""The campaign of tuning time: what is measured, and how the page says it."""

from __future__ import annotations

from polyfuse_bench import campaigns, report
from polyfuse_bench.backends import DEFAULT_BACKENDS
from polyfuse_bench.tuning import CONTENDERS, MODE, seconds_of_choice

COLD = {"inductor": 10.0, f"inductor:{MODE}": 50.0, "polyfuse": 4.0, f"polyfuse:{MODE}": 14.0}
WARM = {"inductor": 5.0, f"inductor:{MODE}": 6.0, "polyfuse": 3.0, f"polyfuse:{MODE}": 2.9}


def test_what_the_mode_adds():
    assert seconds_of_choice(COLD, "inductor") == 40.0
    assert seconds_of_choice(WARM, "polyfuse") == 0.0
    assert seconds_of_choice({"polyfuse": 1.0}, "polyfuse") is None


def test_both_compilers_with_and_without_the_mode(monkeypatch):
    rows = []
    monkeypatch.setattr(
        campaigns, "_compile_row", lambda selection, task: rows.append((selection, task)) or {}
    )
    (measure,) = campaigns.tuning(campaigns.Selection(backends=DEFAULT_BACKENDS))
    measure()
    ((selection, task),) = rows
    assert selection.compilers == CONTENDERS and task["name"] == "bert" and task["kind"] == "compile"


def test_the_table(monkeypatch):
    monkeypatch.setattr(report, "_facts", lambda content: [])
    row = {"name": "bert", "mode": "forward", "cold": COLD, "warm": WARM, "failures": {}}
    lines = report._tuning_section({"rows": [row, {**row, "cold": {}, "warm": {}}]})
    text = "\n".join(lines)
    assert "| bert, forward, cold | 40 s | 10 s | 0.25× |" in text
    assert "| bert, forward, warm | 1 s | 0 s | 0.00× |" in text
    assert "| bert, forward, cold | failed | failed |" in text
