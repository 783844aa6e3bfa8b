from __future__ import annotations

import json

import pytest

from polyfuse.cache.timings import FAILED, Measured, TimingStore, timing_key

KEY = timing_key("kernel", "toy", {"version": "1"}, {"machine": "here"})


def test_what_is_written_is_read(tmp_path):
    store = TimingStore(tmp_path)
    assert store.read(KEY) == Measured()
    measured = Measured({"block=1": 0.25, "block=2": FAILED}, "block=1")
    store.write(KEY, measured)
    assert TimingStore(tmp_path).read(KEY) == measured
    store.write(KEY, Measured({"block=1": 0.5}))
    assert store.read(KEY) == Measured({"block=1": 0.5}, None)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"times": 3, "best": null}', '{"times": {"a": "x"}, "best": null}', "\0"],
)
def test_damaged_files_hold_nothing(tmp_path, content):
    store = TimingStore(tmp_path)
    store.write(KEY, Measured({"a": 1.0}, "a"))
    (path,) = tmp_path.rglob("*.json")
    path.write_text(content)
    assert store.read(KEY) == Measured()


def test_a_winner_that_was_never_measured_is_none(tmp_path):
    store = TimingStore(tmp_path)
    store.write(KEY, Measured({"a": 1.0}, "b"))
    assert store.read(KEY).best is None


def test_files_are_plain_text_without_infinities(tmp_path):
    TimingStore(tmp_path).write(KEY, Measured({"a": FAILED}, "a", "a sum"))
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text()) == {"times": {"a": None}, "best": "a", "about": "a sum"}


def test_an_unwritable_folder_costs_only_the_memory(tmp_path):
    (tmp_path / "timings").touch()
    store = TimingStore(tmp_path)
    store.write(KEY, Measured({"a": 1.0}))
    assert store.read(KEY) == Measured()


@pytest.mark.parametrize(
    "other",
    [
        ("kernel2", "toy", {"version": "1"}, {"machine": "here"}),
        ("kernel", "toy2", {"version": "1"}, {"machine": "here"}),
        ("kernel", "toy", {"version": "2"}, {"machine": "here"}),
        ("kernel", "toy", {"version": "1"}, {"machine": "there"}),
    ],
)
def test_everything_that_times_depend_on_is_in_the_key(other):
    assert timing_key(*other) != KEY
