"""The line that shows how far a long compile is."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports import progress
from polyfuse.compiler.reports.progress import Progress, compiling, enter_stage, note_built, watch_builds
from polyfuse.workers import BuildFuture

ON = Settings.resolve(None, {"progress": "on"})
OFF = Settings.resolve(None, {"progress": "off"})


@pytest.fixture
def lines(monkeypatch) -> list[str]:
    """What is drawn; at once, and often."""
    drawn: list[str] = []
    monkeypatch.setattr(progress, "_progress", Progress(drawn.append, patience=0.0, refresh=0.005))
    return drawn


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_stages_kernels_and_the_end(lines):
    built: Future = Future()
    built.set_result({})
    pending: Future = Future()
    with compiling(ON, lambda: "g"):
        until(lambda: any("trace (stage 1 of 8)" in line for line in lines))
        enter_stage("generate")
        watch_builds([BuildFuture({"a": built, "b": pending}, lambda key, location: location)])
        until(lambda: any("generate (stage 6 of 8), kernels built 1 of 2 (about " in line for line in lines))
    until(lambda: any(line.startswith("polyfuse: kernels built 1 of 2") for line in lines))
    pending.set_result({})
    until(lambda: lines[-1] == "")
    until(lambda: progress._progress._thread is None)
    with compiling(ON, lambda: "g"):
        until(lambda: lines[-1] != "")
    until(lambda: lines[-1] == ""), "it begins anew"


def test_the_line_is_gone_before_the_program_goes_on(lines):
    with compiling(ON, lambda: "g"):
        until(lambda: lines)
    assert lines[-1] == ""
    pending: Future = Future()
    with compiling(ON, lambda: "g"):
        watch_builds([BuildFuture({"a": pending}, lambda key, location: location)])
    until(lambda: lines[-1].startswith("polyfuse: kernels built 0 of 1"))
    pending.set_result({})
    note_built()
    assert lines[-1] == ""


def test_whoever_clears_waits_for_a_line_that_another_thread_takes_away():
    drawn, taking = [], threading.Event()

    def draw(text: str) -> None:
        if not text:
            taking.set()
            time.sleep(0.1)
        drawn.append(text)

    shown = Progress(draw)
    shown._is_drawn = True
    other = threading.Thread(target=shown.clear_if_idle)
    other.start()
    assert taking.wait(60)
    shown.clear_if_idle()
    assert drawn == [""]
    other.join()


def test_a_compile_that_ends_as_its_first_line_is_drawn_leaves_none():
    """Another thread draws it, and has just seen that the compile goes on."""
    drawn: list[str] = []
    compile_ = progress._Compile(time.monotonic())

    class Watched(Progress):
        looks = 0

        def text(self, now: float) -> str:
            found = super().text(now)
            self.looks += 1
            if self.looks == 1:
                ending.start()
                ending.join(0.2)  # it ends now, or waits for the line that is drawn
            return found

    shown = Watched(drawn.append)
    shown._active[id(compile_)] = compile_
    ending = threading.Thread(target=shown.end, args=(compile_,))
    shown._put("a line")
    ending.join(60)
    assert drawn in ([], ["a line", ""])


def test_several_threads_at_once(lines):
    def compile_() -> None:
        with compiling(ON, lambda: "g"):
            enter_stage("fuse")
            until(lambda: any("fuse and 2 more graphs" in line for line in lines))

    threads = [threading.Thread(target=compile_) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_autotuning_draws_its_own_table(lines):
    with compiling(ON, lambda: "g"):
        until(lambda: lines)
        enter_stage("autotune")
        until(lambda: lines[-1] == "")
        drawn = len(lines)
        time.sleep(0.05)
        assert len(lines) == drawn


def test_what_draws_may_fail(monkeypatch):
    def broken(text: str) -> None:
        raise OSError("the terminal is gone")

    monkeypatch.setattr(progress, "_progress", Progress(broken, patience=0.0, refresh=0.005))
    with compiling(ON, lambda: "g"):
        until(lambda: progress._progress.draw is not broken)


def test_nothing_is_started_where_nothing_is_shown(lines, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    for settings in (OFF, Settings.resolve()):
        with compiling(settings, lambda: "g"):
            assert progress._progress._thread is None


def test_a_long_compile_is_a_line_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    caplog.set_level(logging.INFO, "polyfuse.compiler")
    with compiling(OFF, lambda: "graph g"), compiling(OFF, lambda: "a graph within"):
        pass
    (record,) = caplog.records
    assert re.fullmatch(r"graph g took \d+\.\d s to compile", record.message)


def test_a_terminal_gets_one_line_and_others_one_now_and_then(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert progress._drawer(always=False) is progress._draw_on_terminal
    progress._draw_on_terminal("polyfuse: a long line that does not fit")
    assert "\n" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert progress._drawer(always=False) is None
    draw = progress._drawer(always=True)
    for text in ("one", "two", ""):
        draw(text)
    assert capsys.readouterr().err == "one\n"


def test_a_notebook_gets_an_output_that_is_replaced(monkeypatch):
    shown: list[str] = []

    class Handle:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return Handle()

    shell = type("Shell", (), {"kernel": object()})()
    module = type(sys)("IPython")
    module.get_ipython, module.display = lambda: shell, type(sys)("IPython.display")
    module.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    draw = progress._drawer(always=False)
    for text in ("one", "two", ""):
        draw(text)
    assert shown == ["one", "two", "polyfuse: compiled"]


def test_a_real_compile_passes_through_the_stages(lines, monkeypatch):
    seen: list[str] = []
    original = progress.enter_stage
    monkeypatch.setattr(
        "polyfuse.compiler.reports.clock.enter_stage", lambda name: (seen.append(name), original(name))
    )
    torch.compiler.reset()
    options = {"backends": ["interpreter"], "progress": "on", "graph_cache": False}
    torch.compile(torch.sin, backend="polyfuse", options=options)(torch.ones(3))
    assert seen == ["lower", "claim", "autotune", "fuse", "autotune", "generate", "plan", "load"]
    until(lambda: lines and lines[-1] == "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_begins_anew(lines):
    with compiling(ON, lambda: "g"):
        thread = progress._progress._thread
        monkeypatched = threading.Thread(target=lambda: None)
        progress._progress._thread = monkeypatched  # as in the child of a fork: it does not run
        progress._progress.begin(progress._Compile(time.monotonic()))
        assert progress._progress._thread not in (thread, monkeypatched)
        progress._progress._active.clear()
