"""Compiling and choosing ahead of timing: several processes side by side, each with rows of its own.

Compilers that choose by timing spend seconds on each row, most of them on compiling candidates. Here
processes fill the caches on disk from empty, so that one process can then time all rows from warm caches. All
contenders go through it alike. A process keeps Polyfuse's cache in a folder of its own, since races of one
folder wait for each other; in the end these folders become one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from polyfuse_bench.child import TASKS, child_environment, first_line

OWN = "POLYFUSE_CACHE_DIR"
"""The cache that each process has to itself."""


def go_ahead(
    tasks: Sequence[Mapping[str, Any]], processes: int, seconds: float, folder: Path
) -> dict[str, dict[str, float]]:
    """Each row that was compiled in time: the seconds of each contender's first call.

    Caches are below `folder`; `adopt` makes this process use them.
    """
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: dict[str, dict[str, float]] = {}
    children = [_started(folder, number, processes) for number in range(processes)]
    threads = [threading.Thread(target=_feed, args=(child, waiting, done)) for child in children]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    while not waiting.empty():
        waiting.get()
    for child in children:
        # with all that it started: nothing may run while rows are timed
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for thread in threads:
        thread.join()
    for number in range(processes):
        own = _own(folder, number)
        if own.is_dir():
            shutil.copytree(own, folder / OWN.lower(), dirs_exist_ok=True)
    return done


def adopt(folder: Path) -> None:
    """Use the caches that were filled: call before a compiler is imported."""
    os.environ.update(_variables(folder))


def _variables(folder: Path) -> dict[str, str]:
    from polyfuse_bench.backends import CACHE_VARIABLES

    return {name: str(folder / name.lower()) for name in CACHE_VARIABLES}


def _own(folder: Path, number: int) -> Path:
    return folder / f"{OWN.lower()}-{number}"


def _started(folder: Path, number: int, processes: int) -> subprocess.Popen[str]:
    workers = str(max(1, (os.cpu_count() or 1) // processes))
    environment = {
        **os.environ,
        **_variables(folder),
        OWN: str(_own(folder, number)),
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


def _feed(
    child: subprocess.Popen[str], waiting: queue.SimpleQueue[Mapping[str, Any]], done: dict[str, Any]
) -> None:
    """Hand rows to a child, one after the other, until there are none or it is gone."""
    assert child.stdin is not None and child.stdout is not None
    while True:
        try:
            task = waiting.get_nowait()
            child.stdin.write(json.dumps(dict(task)) + "\n")
            child.stdin.flush()
        except (queue.Empty, BrokenPipeError):
            return
        answer = child.stdout.readline()
        if not answer:
            return
        done[task["name"]] = json.loads(answer)


def main() -> None:
    """In a child: read tasks, answer with seconds. What compilers print goes elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        try:
            found = import_module(TASKS[task["kind"]]).first_calls(task)
        except Exception as error:
            print(f"{task['name']}: {first_line(error)}", file=sys.stderr)
            found = {}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
