"""The campaign: workers side by side, one architecture after another in each; rows are stored at once."""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyfuse_bench.architectures import catalogue
from polyfuse_bench.architectures.built import Entry
from polyfuse_bench.architectures.measure import Row, Settings
from polyfuse_bench.architectures.outcome import CRASH, EAGER_FAILS, NO_TRUTH, NOT_BUILDABLE, TIMED_OUT
from polyfuse_bench.child import child_environment, ending

START_SECONDS = 240.0
GRACE_SECONDS = 15.0
LOG = ".jsonl"
COMMAND = (sys.executable, "-m", "polyfuse_bench.architectures.worker")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        jobs: processes side by side.
        seconds: after which no further architecture is begun; those under way may end within `grace`.
        limit: seconds that one architecture may take.
        log: file to which each row is added as a line of JSON.
        cache: folder of compiled kernels; one for this run alone unless named.
        known: log of another run; what was large there, or not built, comes last.
        resume: whether architectures whose rows the log holds are left out.
    """

    settings: Settings
    libraries: tuple[str, ...]
    only: tuple[str, ...]
    jobs: int
    seconds: float
    limit: float
    log: Path
    resume: bool = False
    cache: str = ""
    known: Path | None = None
    grace: float = 30.0


Show = Callable[[dict[str, Any], int, int], None]


def run_campaign(plan: Plan, show: Show = lambda row, done, total: None) -> list[dict[str, Any]]:
    """Run it and answer all rows, in the catalogue's order, those of earlier runs included."""
    everything = catalogue.entries(plan.libraries, plan.only)
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    if not plan.resume:
        plan.log.unlink(missing_ok=True)
    rows = read_log(plan.log)
    known = {(row["library"], row["name"], row["dtype"]) for row in rows}
    left = [
        e
        for e in everything
        if any((e.library, e.name, dtype) not in known for dtype in plan.settings.dtypes)
    ]
    if plan.known is not None:
        left = costly_last(left, read_log(plan.known))
    _Run(plan, left, rows, len(everything), show).run()
    order = {(entry.library, entry.name): position for position, entry in enumerate(everything)}
    latest = {(row["library"], row["name"], row["dtype"]): row for row in rows}
    return sorted(
        latest.values(),
        key=lambda row: (order.get((row["library"], row["name"]), len(order)), row["dtype"] != "float32"),
    )


MANY_KERNELS = 90


def costly_last(entries: Sequence[Entry], rows: Sequence[dict[str, Any]]) -> list[Entry]:
    """The same entries, those last that are known to be large, and behind them those that were not built."""
    cost: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["library"], row["name"]
        mine = (
            2
            if row["outcome"] in (NOT_BUILDABLE, EAGER_FAILS, NO_TRUTH)
            else int(row["kernels"] > MANY_KERNELS)
        )
        cost[key] = max(cost.get(key, 0), 1 if row["outcome"] == TIMED_OUT else mine)
    return sorted(entries, key=lambda entry: cost.get((entry.library, entry.name), 0))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line that was cut off is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


class _Run:
    """The state that the threads share: one thread follows one worker at a time."""

    def __init__(
        self, plan: Plan, left: Sequence[Entry], rows: list[dict[str, Any]], total: int, show: Show
    ) -> None:
        self.plan, self.rows, self.total, self.show = plan, rows, total, show
        self.left = list(left)
        self.lock = threading.Lock()
        self.problem = ""
        self.end = time.monotonic() + plan.seconds
        self.cache = tempfile.TemporaryDirectory(prefix="polyfuse-architectures-") if not plan.cache else None

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._follow_workers) for _ in range(min(self.plan.jobs, len(self.left)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.cache is not None:
            self.cache.cleanup()
        if self.problem:
            raise RuntimeError(self.problem)

    def next(self) -> Entry | None:
        with self.lock:
            if not self.left or time.monotonic() >= self.end:
                return None
            return self.left.pop(0)

    def stop(self, problem: str) -> None:
        """Begin nothing more: without workers, every architecture would be blamed for what it did not do."""
        with self.lock:
            self.left.clear()
            self.problem = problem

    def say(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.rows.append(row)
            with self.plan.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
            done = self.total - len(self.left)
        self.show(row, done, self.total)

    def _follow_workers(self) -> None:
        while (entry := self.next()) is not None:
            worker = _Worker(self.plan, self.cache.name if self.cache else self.plan.cache)
            try:
                if not worker.started():
                    worker.close()
                    self.stop(f"a worker did not start: {worker.last_words()}")
                    return
                while entry is not None:
                    entry = self.next() if self._measure(worker, entry) else None
            finally:
                worker.close()

    def _measure(self, worker: _Worker, entry: Entry) -> bool:
        """One architecture; answers whether the worker may go on."""
        worker.ask(entry)
        said: list[str] = []
        late = False
        until = min(time.monotonic() + 1.3 * self.plan.limit + GRACE_SECONDS, self.end + self.plan.grace)
        while True:
            answer = worker.answer(until)
            if answer is None:
                break
            if "done" in answer:
                return not answer["full"]
            if "late" in answer:
                late = True
                continue
            said.append(answer["row"]["dtype"])
            self.say(answer["row"])
        stuck = worker.process.poll() is None
        if stuck and time.monotonic() >= self.end + self.plan.grace:
            # its time was not up, but the campaign's
            return False
        worker.close()
        outcome, detail = (
            (TIMED_OUT, f"did not answer within {self.plan.limit:.0f} seconds")
            if stuck
            else (TIMED_OUT if late else CRASH, worker.last_words())
        )
        self.blame(entry, outcome, detail, said)
        return False

    def blame(self, entry: Entry, outcome: str, detail: str, said: Sequence[str] = ()) -> None:
        for dtype in self.plan.settings.dtypes:
            if dtype not in said:
                self.say(
                    dataclasses.asdict(Row(entry.library, entry.name, entry.family, dtype, outcome, detail))
                )


class _Worker:
    """A child process, its questions and its answers."""

    def __init__(self, plan: Plan, cache: str) -> None:
        # open as long as the process writes to it
        self.errors = tempfile.NamedTemporaryFile("w+", prefix="polyfuse-worker-")  # noqa: SIM115
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "POLYFUSE_CACHE_DIR": str(Path(cache) / "polyfuse"),
            "TRITON_CACHE_DIR": str(Path(cache) / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(cache) / "inductor"),
            # every architecture is met once: what was compiled for it is never asked for again
            "POLYFUSE_GRAPH_CACHE": "0",
        }
        environment.setdefault("POLYFUSE_BUILD_WORKERS", "1" if plan.jobs > 1 else "2")
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=child_environment(environment),
        )
        self.partial = b""
        self.selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        task = {
            "settings": dataclasses.asdict(plan.settings),
            "limit": plan.limit,
            "libraries": list(plan.libraries),
        }
        self._write(task)

    def started(self) -> bool:
        return self.answer(time.monotonic() + START_SECONDS) is not None

    def ask(self, entry: Entry) -> None:
        self._write(dataclasses.asdict(entry))

    def _write(self, content: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps(content) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self, until: float) -> dict[str, Any] | None:
        """The next answer; None where the process ended, or said nothing until then."""
        assert self.process.stdout is not None
        while b"\n" not in self.partial:
            left = until - time.monotonic()
            if left <= 0 or not self.selector.select(left):
                return None
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                self.process.wait()
                return None
            self.partial += more
        line, self.partial = self.partial.split(b"\n", 1)
        content: dict[str, Any] = json.loads(line)
        return content

    def last_words(self) -> str:
        tail = Path(self.errors.name).read_text(errors="replace").strip().splitlines()[-2:]
        return f"{ending(self.process.returncode)}: {' | '.join(tail)}"[:300]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.selector.close()
