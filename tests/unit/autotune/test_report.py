"""The tables and the log of tried."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from autotuning import record
from polyfuse import cli
from polyfuse.autotune import report as report_module
from polyfuse.autotune.report import ProgressTable, append_log, row_of, trials_text
from polyfuse.base.settings import Settings
from polyfuse.cache.timings import FAILED, TimingStore

MEASURED = record({"library": 2.0, "x a=1": 1.0, "x a=2": FAILED}, "mm of float32[7x5]")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "_PATIENCE", 0.0)
    monkeypatch.setattr(report_module, "_REFRESH", 0.0)
    monkeypatch.setenv("COLUMNS", "160")


def test_the_ten_best_are_named():
    many = record({f"x a={n}": 1.0 + n for n in range(12)}, "mm of float32[7x5]")
    said = trials_text(many)
    assert all(f"x a={n} {1.0 + n:.4f} ms" in said for n in range(10))
    assert "x a=10 " not in said and said.endswith("2 slower ones")


def shown(settings: Settings) -> None:
    progress = ProgressTable(settings, limit=100.0)
    progress.begin_round(2)
    progress.problem("mm of float32[7x5]", 3)
    progress.candidate("library", 2.0)
    progress.candidate("x a=1", FAILED)
    progress.problem("bmm of float32[2x7x5]", 2)
    progress.done(MEASURED)
    progress.close()
    progress.close()


def test_tables_while_it_lasts_and_afterwards(at_once, capsys):
    shown(Settings.resolve(None, {"progress": "on"}))
    said = capsys.readouterr().err
    assert "tuned in" in said and "mm of float32[7x5]" in said
    assert "x a=1" in said and "1.0000" in said and "2.00 x library" in said and "2 + 1 failed" in said


def test_how_far_a_problem_is(capsys):
    progress = ProgressTable(Settings.resolve(None, {"progress": "off"}))
    progress.begin_round(2)
    progress.problem("mm of float32[7x5]", 3)
    progress.candidate("library", 2.0)
    progress.candidate("x a=1", FAILED)
    Console(width=120).print(progress._table())
    said = capsys.readouterr().out
    assert "problem 1 of 2" in said and "2 of 3" in said and "library 2.0000 ms" in said


def test_how_far_builds_are(at_once, capsys):
    """What takes longest is shown before anything is timed."""
    progress = ProgressTable(Settings.resolve(None, {"progress": "off"}))
    progress.begin_round(3)
    progress.building(7, 20)
    Console(width=120).print(progress._table())
    said = capsys.readouterr().out
    assert "round 1: 3 problems" in said and "building candidates" in said and "7 of 20" in said
    progress.problem("mm of float32[7x5]", 3)
    Console(width=120).print(progress._table())
    assert "0 of 3" in capsys.readouterr().out


def test_lines_where_tables_cannot_be_drawn_anew(at_once, capsys, monkeypatch):
    progress = ProgressTable(Settings.resolve(None, {"progress": "on"}))
    progress.begin_round(3)
    progress.building(7, 20)  # so soon after the first, no line
    monkeypatch.setattr(report_module, "_LINES", 0.0)
    progress.building(8, 20)
    assert progress._live is not None and not progress._live.console.is_terminal
    progress.close()
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("tuning, round 1: 3 problems") and first.endswith(": building candidates")
    assert second.endswith("building candidates 8 of 20")


@pytest.mark.parametrize("value", ["auto", "off"])
def test_nothing_where_nobody_looks(at_once, capsys, value):
    shown(Settings.resolve(None, {"progress": value}))
    assert capsys.readouterr() == ("", "")


def test_short_searches_need_no_table(capsys):
    shown(Settings.resolve(None, {"progress": "on"}))
    assert capsys.readouterr().err == ""


def test_rows():
    assert row_of(MEASURED) == ("mm of float32[7x5]", "x a=1", "1.0000", "2.00 x library", "2 + 1 failed")
    assert row_of(record({"x": FAILED}))[1:3] == ("undecided", "")
    # of configurations of one, the next; else the best of somebody else
    assert row_of(record({"x n=1": 1.0, "x n=2": 1.5, "x": 3.0}))[3] == "1.50 x x n=2"
    both = record({"x n=1": 1.0, "x n=2": 1.5, "y n=1": 2.0, "y": 3.0})
    assert row_of(both)[3] == "2.00 x y"


def test_every_search_adds_a_line_to_the_log(tmp_path):
    path = tmp_path / "logs" / "tune.jsonl"
    append_log(str(path), "ab", MEASURED, 1.5)
    append_log(str(path), "cd", record({}), 0.0)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["best"] == "x a=1" and first["milliseconds"]["x a=2"] is None and first["seconds"] == 1.5
    assert second["key"] == "cd" and second["best"] is None


def test_a_log_that_cannot_be_written_costs_the_log(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    append_log(str(tmp_path / "file" / "tune.jsonl"), "ab", MEASURED, 1.0)
    assert "cannot be written" in caplog.text


class TestCommand:
    @pytest.fixture(autouse=True)
    def store(self, tmp_path, monkeypatch):
        monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("COLUMNS", "160")
        store = TimingStore(tmp_path)
        store.write("ab12", MEASURED)
        store.write("cd34", record({"y": 3.0}, "kernel k of float32[9]"))
        return store

    def test_show(self, capsys):
        assert cli.main(["tune", "show"]) == 0
        said = capsys.readouterr().out
        assert "mm of float32[7x5]" in said and "kernel k" in said
        cli.main(["tune", "show", "no", "such"])
        assert capsys.readouterr().out == "nothing is stored of no such\n"

    def test_show_some(self, capsys):
        cli.main(["tune", "show", "kernel", "--json"])
        (row,) = json.loads(capsys.readouterr().out)
        assert row["best"] == "y" and row["milliseconds"] == {"y": 3.0}

    def test_clear_some_and_all(self, capsys, store):
        cli.main(["tune", "clear", "mm"])
        assert [key for key, _ in store.entries()] == ["cd34"]
        cli.main(["tune", "clear"])
        assert not list(store.entries())
        cli.main(["tune", "show"])
        assert "nothing is stored" in capsys.readouterr().out
