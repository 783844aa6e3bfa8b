"""The sweep: shards of items in child processes; after a crash a new one goes on behind the culprit."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from polyfuse_bench.child import child_environment, ending
from polyfuse_bench.devices import CPU
from polyfuse_bench.opdb.check import CheckSettings, Item, Outcome, items
from polyfuse_bench.opdb.status import CRASH, SKIP, STATUSES, TIMEOUT
from polyfuse_bench.opdb.worker import DEVICE_LOST

# A worker is replaced after this many items, which bounds the memory that compiled code holds.
ITEMS_PER_WORKER = 150
POLL_SECONDS = 0.2

OUT_OF_TIME = "the sweep ended before its turn came"

# Called after each item: how many are finished, of how many, and the outcome.
Progress = Callable[[int, int, Outcome], None]
Record = Callable[[Item, Outcome], None]


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    """What to sweep.

    Attributes:
        timeout: seconds that one item may take.
        limit: seconds after which the sweep ends with what it has; 0 for none.
        kernels: whether each kernel runs beside the interpreter as well.
    """

    backend: str
    dtypes: tuple[str, ...] = ("float32", "int64", "bfloat16")
    samples: int = 2
    dynamic: bool = False
    gradients: bool = False
    only: tuple[str, ...] = ()
    shards: int = 2
    timeout: float = 120.0
    device: str = CPU
    limit: float = 0.0
    kernels: bool = False

    @property
    def check(self) -> CheckSettings:
        return CheckSettings(
            self.backend, self.samples, self.dynamic, self.gradients, self.device, self.kernels
        )


def run_sweep(
    settings: SweepSettings, progress: Progress = lambda done, total, outcome: None
) -> list[Outcome]:
    """Check every item and answer the outcomes in the database's order."""
    everything = items(settings.dtypes, settings.only, settings.device)
    outcomes: dict[Item, Outcome] = {}
    lock = threading.Lock()
    end = time.monotonic() + settings.limit if settings.limit else math.inf

    def record(item: Item, outcome: Outcome) -> None:
        with lock:
            outcomes[item] = outcome
            progress(len(outcomes), len(everything), outcome)

    shards = [
        threading.Thread(
            target=_run_shard, args=(everything[number :: settings.shards], settings, end, record)
        )
        for number in range(settings.shards)
    ]
    for shard in shards:
        shard.start()
    for shard in shards:
        shard.join()
    return [outcomes[item] for item in everything]


def _run_shard(mine: Sequence[Item], settings: SweepSettings, end: float, record: Record) -> None:
    left = list(mine)
    while left and time.monotonic() < end:
        done = _run_worker(left[:ITEMS_PER_WORKER], settings, end, record)
        left = left[done:]
    for item in left:
        record(item, Outcome(item.op, item.dtype, SKIP, OUT_OF_TIME))


def _run_worker(batch: Sequence[Item], settings: SweepSettings, end: float, record: Record) -> int:
    """Run one worker to its end, or to the end of the item that kills it; answer how many are finished."""
    with tempfile.TemporaryDirectory(prefix="polyfuse-opdb-") as folder:
        task, log, errors = (Path(folder) / name for name in ("task.json", "log.jsonl", "errors.txt"))
        task.write_text(
            json.dumps(
                {
                    "settings": dataclasses.asdict(settings.check),
                    "items": [dataclasses.asdict(item) for item in batch],
                    "timeout": settings.timeout,
                }
            )
        )
        log.touch()
        environment = child_environment({**os.environ, "OMP_NUM_THREADS": "1"})
        command = [sys.executable, "-m", "polyfuse_bench.opdb.worker", str(task), str(log)]
        with errors.open("w") as sink:
            worker = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
        finished, stuck = _follow(worker, log, batch, settings, end, record)
        if finished < len(batch) and worker.returncode != DEVICE_LOST and time.monotonic() < end:
            record(batch[finished], _post_mortem(batch[finished], worker.returncode, stuck, settings, errors))
            finished += 1
        return finished


def _follow(
    worker: subprocess.Popen[bytes],
    log: Path,
    batch: Sequence[Item],
    settings: SweepSettings,
    end: float,
    record: Record,
) -> tuple[int, bool]:
    """Record outcomes as they appear; kill a worker that makes no progress where no signal reaches it, or
    that is at work when the sweep ends.
    """
    finished, last_progress, partial = 0, time.monotonic(), ""
    with log.open() as lines:
        while True:
            ended = worker.poll() is not None
            for line in lines:
                partial += line
                if not partial.endswith("\n"):
                    break
                content, partial = json.loads(partial), ""
                last_progress = time.monotonic()
                record(batch[finished], _outcome(content["outcome"]))
                finished += 1
            if ended:
                return finished, False
            now = time.monotonic()
            stuck = now - last_progress > 1.5 * settings.timeout + 30
            if stuck or now >= end:
                worker.kill()
                worker.wait()
                return finished, stuck
            time.sleep(POLL_SECONDS)


def _post_mortem(
    item: Item, status: int | None, stuck: bool, settings: SweepSettings, errors: Path
) -> Outcome:
    if stuck:
        return Outcome(item.op, item.dtype, TIMEOUT, f"did not answer in {settings.timeout:.0f} seconds")
    tail = " | ".join(errors.read_text(errors="replace").strip().splitlines()[-2:])[:300]
    return Outcome(item.op, item.dtype, CRASH, f"{ending(status)}: {tail}".rstrip(": "))


def _outcome(fields: dict[str, Any]) -> Outcome:
    listed = {name: tuple(fields[name]) for name in ("fallbacks", "unchecked")}
    return Outcome(**{**fields, **listed})


def summary_table(outcomes: Sequence[Outcome]) -> Table:
    """Counts by status and dtype."""
    dtypes = list(dict.fromkeys(outcome.dtype for outcome in outcomes))
    counts = collections.Counter((outcome.status, outcome.dtype) for outcome in outcomes)
    table = Table("status", *dtypes, "total", title="Operator database")
    for status in STATUSES:
        row = [counts[status, dtype] for dtype in dtypes]
        if any(row):
            table.add_row(status, *map(str, row), str(sum(row)))
    uncompiled = sum(outcome.graphs == 0 and outcome.status == "agree" for outcome in outcomes)
    differing = sum(bool(outcome.strides) for outcome in outcomes)
    falling = sum(bool(outcome.fallbacks) for outcome in outcomes)
    checked = sum(outcome.checked for outcome in outcomes)
    left = sum(len(outcome.unchecked) for outcome in outcomes)
    table.caption = (
        f"{uncompiled} agree without a compiled graph, {falling} use eager kernels, "
        f"{differing} differ in strides"
    )
    if checked:
        table.caption += f"; {checked} launches ran beside the interpreter, {left} kernels could not"
    return table
