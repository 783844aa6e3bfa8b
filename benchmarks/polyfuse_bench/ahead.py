"""Compiling and choosing ahead of timing: several processes side by side, each with rows of its own.

Compilers that choose by timing spend half a minute on a row, most of it on compiling candidates. Here
processes do that from empty caches, all candidates alike, and keep what they compiled. When all are quiet,
each row is timed by the process that has it, one row after the other. A process keeps Polyfuse's cache in a
folder of its own, since trials of one folder wait for each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from polyfuse_bench.backends import CACHE_VARIABLES
from polyfuse_bench.child import TASKS, ChildFailed, child_environment, first_line

OWN = "POLYFUSE_CACHE_DIR"
"""The cache that each process has to itself."""
_QUIET_SECONDS = 1.0
"""Seconds after the last row was compiled until the first is timed."""
_OVERTIME = 0.25
"""What a row that takes longer than most may take beyond the time for all, as a part of that."""


class Prepared(Protocol):
    """A row that is compiled; `measure` times it."""

    def measure(self) -> dict[str, Any]: ...


class Ahead:
    """Processes that compile rows, and then time them when asked.

    Attributes:
        ready: rows that were compiled in time, or could not be, in the order of the tasks.
    """

    def __init__(
        self, tasks: Sequence[Mapping[str, Any]], processes: int, seconds: float, folder: Path
    ) -> None:
        self._waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        for task in tasks:
            self._waiting.put(task)
        self._deadline = time.monotonic() + seconds
        latest = self._deadline + _OVERTIME * seconds
        self._seconds: list[float] = []
        self._faults: dict[str, str] = {}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._children = [_started(folder, number, processes) for number in range(processes)]
        threads = [threading.Thread(target=self._feed, args=(child,)) for child in self._children]
        for thread in threads:
            thread.start()
        for child, thread in zip(self._children, threads, strict=True):
            thread.join(max(0.0, latest - time.monotonic()))
            if thread.is_alive():
                # what it compiled so far is lost with it, for it answers nothing before it is done
                _end(child)
                thread.join()
        lost = {name for name, child in self._holders.items() if child.poll() is not None}
        self.ready = [task["name"] for task in tasks if task["name"] in self._holders.keys() - lost]
        time.sleep(_QUIET_SECONDS)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self, name: str) -> dict[str, Any]:
        """The row of a name in `ready`."""
        if name in self._faults:
            raise ChildFailed(self._faults[name])
        answer = _ask(self._holders[name], {"measure": name})
        if answer is None:
            raise ChildFailed(f"the process that compiled {name} is gone")
        if "error" in answer:
            raise ChildFailed(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End all processes, with what they started."""
        for child in self._children:
            _end(child)

    def _feed(self, child: subprocess.Popen[str]) -> None:
        """Hand rows to a child, one after the other, as long as one more is likely to be done in time."""
        while time.monotonic() + (statistics.median(self._seconds) if self._seconds else 0) < self._deadline:
            try:
                task = self._waiting.get_nowait()
            except queue.Empty:
                return
            begun = time.monotonic()
            answer = _ask(child, task)
            if answer is None:
                return
            if "error" in answer:
                self._faults[task["name"]] = str(answer["error"])
            self._seconds.append(time.monotonic() - begun)
            self._holders[task["name"]] = child


def _ask(child: subprocess.Popen[str], question: Mapping[str, Any]) -> dict[str, Any] | None:
    """A child's answer; None if it is gone."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps(dict(question)) + "\n")
        child.stdin.flush()
    except (BrokenPipeError, ValueError):
        return None
    answer = child.stdout.readline()
    return json.loads(answer) if answer.endswith("\n") else None


def _end(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _started(folder: Path, number: int, processes: int) -> subprocess.Popen[str]:
    workers = str(max(1, (os.cpu_count() or 1) // processes))
    environment = {
        **os.environ,
        **{name: str(folder / name.lower()) for name in CACHE_VARIABLES},
        OWN: str(folder / f"{OWN.lower()}-{number}"),
        "POLYFUSE_BUILD_WORKERS": workers,
        "TORCHINDUCTOR_COMPILE_THREADS": workers,
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "polyfuse_bench.ahead"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(environment),
        start_new_session=True,
    )


def main() -> None:
    """In a child: compile what a task says and keep it, or time what was compiled. What compilers print goes
    elsewhere.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    by_name: dict[str, Prepared] = {}
    for line in sys.stdin:
        question = json.loads(line)
        found: dict[str, Any] = {}
        try:
            if "measure" in question:
                found = by_name.pop(question["measure"]).measure()
            else:
                by_name[question["name"]] = import_module(TASKS[question["kind"]]).prepared(question)
        except Exception as error:
            print(f"{question}: {first_line(error)}", file=sys.stderr)
            found = {"error": f"{type(error).__name__}: {first_line(error)}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
