from __future__ import annotations

import pytest

from autotuning import best_of, record
from polyfuse.base.config import Config
from polyfuse.cache.records import parse_record, write_record
from polyfuse.cache.timings import FAILED, Candidate, Record, TimingStore, Trial, timing_key

KEY = timing_key("kernel", "toy", {"version": "1"}, {"machine": "here"})


def test_what_is_written_is_read(tmp_path):
    store = TimingStore(tmp_path)
    assert store.read(KEY) == Record()
    fast = Trial(Candidate("toy", Config.of(block=1)), 0.25)
    bad = Trial(Candidate("toy"), FAILED, "it died")
    known = Record("a sum", (fast, bad), "library", complete=True)
    store.write(KEY, known)
    assert TimingStore(tmp_path).read(KEY) == known
    store.write(KEY, Record("a sum", (fast,)))
    assert store.read(KEY) == Record("a sum", (fast,)) and store.read(KEY).best is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"trials": 3}', '{"trials": [{"config": 3}], "complete": true}', "\0"],
)
def test_damaged_files_hold_nothing(tmp_path, content):
    store = TimingStore(tmp_path)
    store.write(KEY, record({"a": 1.0}))
    (path,) = tmp_path.rglob("*.json")
    path.write_text(content)
    assert store.read(KEY) == Record()


def test_the_best_follows_from_the_trials():
    times = {"library": 1.0, "own n=1": 0.99, "own n=2": FAILED}
    assert best_of(record(times)) == "own n=1"
    assert best_of(record(times, baseline="library")) == "library"  # too close to tell
    assert best_of(record({**times, "own n=3": 0.5}, baseline="library")) == "own n=3"
    assert best_of(record({"library": FAILED, "own": 9.0}, baseline="library")) == "own"
    assert best_of(record(times, complete=False)) is None and best_of(record({"own": FAILED})) is None


def test_files_hold_measurements_as_plain_data_without_infinities(tmp_path):
    TimingStore(tmp_path).write(KEY, record({"a n=1": FAILED}, "a sum"))
    (path,) = tmp_path.rglob("*.json")
    trial = {"implementation": "a", "config": [["n", 1]], "milliseconds": None, "fault": ""}
    assert "Infinity" not in path.read_text()
    assert parse_record(path.read_text()) == {
        "about": "a sum",
        "baseline": "",
        "complete": True,
        "trials": [trial],
    }


def test_an_unwritable_folder_costs_only_the_memory(tmp_path):
    (tmp_path / "timings").touch()
    store = TimingStore(tmp_path)
    store.write(KEY, record({"a": 1.0}))
    assert store.read(KEY) == Record()


@pytest.mark.parametrize(
    ("config", "milliseconds"),
    [
        ([["unroll", 10**8]], 0.1),
        ([["unroll", -(10**8)]], 0.1),
        ([["n", 1]] * 65, 0.1),
        ([["n", 1]], 0.0),
        ([["n", 1]], -1.0),
        ([["n", 1]], 1e9),
    ],
)
def test_a_trial_that_cannot_have_been_measured_is_left_out(tmp_path, config, milliseconds):
    store = TimingStore(tmp_path)
    store.write(KEY, record({"a n=1": 2.0}))
    (path,) = tmp_path.rglob("*.json")
    stored = parse_record(path.read_text())
    odd = {"implementation": "b", "config": config, "milliseconds": milliseconds, "fault": ""}
    write_record(path, {**stored, "trials": [*stored["trials"], odd]})
    assert store.read(KEY) == record({"a n=1": 2.0})


def test_a_flipped_bit_anywhere_leaves_nothing(tmp_path):
    store = TimingStore(tmp_path)
    store.write(KEY, record({"a n=1": 2.0}))
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert store.read(KEY) == Record(), position


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
