"""The campaigns of tuning time and of backend autotuning: what is measured, and how the page says it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from polyfuse_bench import autotune_backends, campaigns, report
from polyfuse_bench.autotune_backends import _trials, gain, winner
from polyfuse_bench.backends import DEFAULT_BACKENDS, compiled
from polyfuse_bench.tuning import CANDIDATES, MODE, seconds_of_choice

from autotuning import record
from polyfuse.cache.timings import FAILED, TimingStore

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
    assert selection.compilers == CANDIDATES and task["name"] == "bert" and task["kind"] == "compile"


def test_the_table(monkeypatch):
    monkeypatch.setattr(report, "facts", lambda content: [])
    row = {"name": "bert", "mode": "forward", "cold": COLD, "warm": WARM, "failures": {}}
    lines = report._tuning_section({"rows": [row, {**row, "cold": {}, "warm": {}}]})
    text = "\n".join(lines)
    assert "| bert, forward, cold | 50 s | 14 s | 0.28× | 40 s | 10 s |" in text
    assert "| bert, forward, warm | 6 s | 2.9 s | 0.48× | 1 s | 0 s |" in text
    assert "| bert, forward, cold | failed | failed |  | failed | failed |" in text


TRIAL = {"kernel": "k", "milliseconds": {"one": 2.0, "two": 1.0}, "first": "one"}


def test_what_choosing_gains():
    assert winner(TRIAL) == "two" and gain(TRIAL) == 2.0
    assert gain({**TRIAL, "first": "two"}) == 1.0


def test_trials_are_read_from_what_was_measured(tmp_path):
    store = TimingStore(tmp_path)
    store.write("ab", record({"interpreter a=1": 3.0, "interpreter a=2": 2.0, "library": 1.0}))
    assert _trials(tmp_path, "cpu") == []  # one backend alone
    store.write("cd", record({"interpreter": 3.0, "cpp lane=1": 2.0, "cpp": FAILED}, "kernel k"))
    (trial,) = _trials(tmp_path, "cpu")
    assert trial == {"kernel": "kernel k", "milliseconds": {"interpreter": 3.0, "cpp": 2.0}, "first": "cpp"}


def test_the_table_of_choices(monkeypatch):
    monkeypatch.setattr(report, "facts", lambda content: [])
    text = "\n".join(report._autotune_backends_section({"rows": [{"name": "softmax", "trials": [TRIAL]}]}))
    assert "| softmax | two | two 1 ms, one 2 ms | 2.00× |" in text
    assert "geometric mean" in text
    assert "two by 2.00" in report.one_line(
        "autotune_backends", {"name": "softmax", "trials": [TRIAL], "failures": {}}
    )


def test_the_campaign_has_a_row_for_each_kernel(monkeypatch):
    asked = []
    monkeypatch.setattr(autotune_backends, "measure", lambda task: asked.append(task) or {"trials": []})
    selection = campaigns.Selection(backends=DEFAULT_BACKENDS, only=("softmax",), cache="folder")
    (row,) = campaigns.autotune_backends(selection)
    assert row() == {"trials": []} and asked[0]["cache"] == "folder" and asked[0]["size"] == "large"
    (on_device,) = campaigns.autotune_backends(dataclasses.replace(selection, device="cuda"))
    assert on_device() == {"trials": []} and asked[1]["backends"] == ("triton", "halide")
    assert autotune_backends._named(asked[1]) == {"backends": ["triton", "halide", "interpreter"]}
    assert autotune_backends._named(asked[0]) == {}
    monkeypatch.setattr(autotune_backends, "measure", lambda task: 1 / 0)
    assert row()["trials"] == [] and "ZeroDivisionError" in row()["failures"]["all"]


def test_a_second_row_does_not_see_what_was_timed_before(tmp_path, monkeypatch):
    store = TimingStore(tmp_path)
    store.write("ab", record({"interpreter": 3.0, "cpp": 2.0}, "kernel k"))
    assert _trials(tmp_path, "cpu")
    autotune_backends._forget(tmp_path)
    assert not _trials(tmp_path, "cpu")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("inductor:freezing", {"freezing": True}),
        ("polyfuse:freezing", {"freezing": True}),
        ("polyfuse:freezing+max-autotune-no-cudagraphs", {"tune_kernels": True, "freezing": True}),
        ("inductor:freezing+max-autotune-no-cudagraphs", {"max_autotune": True, "freezing": True}),
    ],
)
def test_parameters_as_constants(monkeypatch, name, given):
    seen = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: seen.update(options) or function)
    compiled(len, name)
    assert "mode" not in seen and given.items() <= seen["options"].items()
    seen.clear()
    compiled(len, "inductor:reduce-overhead")
    assert seen["mode"] == "reduce-overhead" and "options" not in seen


def test_a_heading_says_what_all_compilers_were_asked_for():
    assert report._manner({"backends": ["eager", "inductor:freezing", "polyfuse:freezing"]}) == ", freezing"
    assert report._manner({"backends": ["eager", "inductor", "polyfuse:freezing"]}) == ""
    assert report._manner({"backends": list(DEFAULT_BACKENDS)}) == "" == report._manner({})
