"""A campaign's child process: measures the architectures that it reads, and answers a line of JSON a row.

After the rows of one architecture comes a line that says so; a process that dies before has died of it.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from functools import partial
from typing import Any

import torch

from polyfuse_bench.alarm import limited
from polyfuse_bench.architectures.built import Entry
from polyfuse_bench.architectures.libraries import library
from polyfuse_bench.architectures.measure import Row, Settings, measure
from polyfuse_bench.architectures.outcome import EAGER_FAILS, TIMED_OUT
from polyfuse_bench.devices import waiter

# A worker that holds more is replaced between two architectures.
MOST_GIBIBYTES = 8.0
# The status of a worker whose device works no more.
DEVICE_LOST = 86


def main() -> None:
    # what models and compilers print is no answer
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # a convolution in TF32 would be compared with one in f32
    torch.backends.cudnn.allow_tf32 = False
    task = json.loads(sys.stdin.readline())
    settings = Settings(**{**task["settings"], "dtypes": tuple(task["settings"]["dtypes"])})
    for name in task["libraries"]:
        library(name)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        entry = Entry(**json.loads(line))
        _one(entry, settings, task["limit"], lambda answer: answers.write(json.dumps(answer) + "\n"))
        lost = _lost_device(settings.device)
        full = lost or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 > MOST_GIBIBYTES
        answers.write(json.dumps({"done": True, "full": full, "cpu": _cpu_seconds()}) + "\n")
        if lost:
            # an ordinary exit would wait for the device
            os._exit(DEVICE_LOST)
        torch.compiler.reset()
        gc.collect()
        if settings.device != "cpu":
            torch.get_device_module(settings.device).empty_cache()


def _lost_device(device: str) -> bool:
    """Whether the device works no more, as after an illegal access or a failed assertion of a kernel."""
    try:
        waiter(device)()
    except Exception:
        return True
    return False


def _cpu_seconds() -> float:
    """Of this process and of the compilers that it waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(entry.ru_utime + entry.ru_stime for entry in spent), 2)


class OutOfTime(BaseException):
    """Not an `Exception`, so that no compiler catches and wraps it."""


def _late(say: Any) -> None:
    say({"late": True})  # where C++ code calls Python and expects no exception, raising one ends the process
    raise OutOfTime


def _one(entry: Entry, settings: Settings, limit: float, say: Any) -> None:
    said: list[str] = []

    def row(content: dict[str, Any]) -> None:
        said.append(content["dtype"])
        say({"row": content})

    try:
        with limited(limit, partial(_late, say)):
            measure(entry, settings, row)
        return
    except OutOfTime:
        outcome, detail = TIMED_OUT, f"took longer than {limit:.0f} seconds"
    except Exception as problem:
        # outside of what is being judged: in the harness, or in an eager model
        traceback.print_exc()
        outcome, detail = EAGER_FAILS, f"{type(problem).__name__}: {problem}"[:300]
    for dtype in settings.dtypes:
        if dtype not in said:
            row(dataclasses.asdict(Row(entry.library, entry.name, entry.family, dtype, outcome, detail)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
