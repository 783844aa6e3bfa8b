"""A sweep's child process: checks items one by one and writes each outcome as a line of JSON at once.

The outcomes come in the items' order, so that after a crash the parent knows whose it was.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

import torch

from polyfuse_bench.devices import waiter
from polyfuse_bench.opdb.check import CheckSettings, Item, Outcome, check
from polyfuse_bench.opdb.status import RAISES, TIMEOUT

# The status of a worker whose device works no more; what it wrote is valid, and another one goes on.
DEVICE_LOST = 86


class OutOfTime(BaseException):
    """Not an `Exception`, so that no compiler catches and wraps it."""


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    settings = CheckSettings(**task["settings"])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _out_of_time)
    with Path(sys.argv[2]).open("a") as log:
        for item in (Item(**entry) for entry in task["items"]):
            outcome = _guarded(item, settings, task["timeout"])
            lost = _lost_device(settings.device)
            if lost and outcome.status != RAISES:
                outcome = Outcome(item.op, item.dtype, RAISES, lost)
            _say(log, {"outcome": dataclasses.asdict(outcome)})
            if lost:
                # an ordinary exit would wait for the device
                os._exit(DEVICE_LOST)


def _lost_device(device: str) -> str:
    """How a device fails after an illegal access or a failed assertion of a kernel; empty while it works."""
    try:
        waiter(device)()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def _guarded(item: Item, settings: CheckSettings, timeout: float) -> Outcome:
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        return check(item, settings)
    except OutOfTime:
        return Outcome(item.op, item.dtype, TIMEOUT, f"took longer than {timeout:.0f} seconds")
    except Exception as error:
        return Outcome(
            item.op, item.dtype, RAISES, f"outside the compiled call: {type(error).__name__}: {error}"[:300]
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _out_of_time(signum: int, frame: Any) -> None:
    raise OutOfTime


def _say(log: TextIO, line: dict[str, Any]) -> None:
    log.write(json.dumps(line) + "\n")
    log.flush()


if __name__ == "__main__":
    main()
