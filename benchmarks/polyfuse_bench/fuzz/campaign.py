"""A search over many seeds: processes side by side, each of which may crash or hang without costing what the
others found.
"""

from __future__ import annotations

import json
import math
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfuse_bench.devices import device_name
from polyfuse_bench.fuzz.trial import BANNED, RAISED
from polyfuse_bench.fuzz.worker import INTERPRETED
from polyfuse_bench.results import write_results

__all__ = ["Campaign", "Tally", "search"]

WORKER = ["-m", "polyfuse_bench.fuzz.worker"]
"""What the interpreter of Python runs."""

_BETWEEN = "between"
"""The phase after a program's outcome is reported."""

_LOST_AFTER = 300.0
"""Seconds without a word from a process, after which what it does is given up."""

_GRACE = 45.0
"""Seconds beyond the limit that a process may take to end its batch; what is left of it is not counted."""

_STOPPED = "stopped"


@dataclass(frozen=True)
class Campaign:
    """What is searched: `count` seeds from the first, by one backend on one device.

    Attributes:
        seeds: these, instead of `count` from the first.
        minutes: begin nothing after that, and end soon; 0: no limit.
    """

    backend: str
    device: str = "cpu"
    seed: int = 0
    count: int = 1000
    jobs: int = 1
    batch: int = 0
    minutes: float = 0.0
    out: Path | None = None
    seeds: tuple[int, ...] = ()

    @property
    def wanted(self) -> Sequence[int]:
        """All seeds."""
        return self.seeds or range(self.seed, self.seed + self.count)

    @property
    def generator(self) -> str:
        """The backend by the name under which processes know it."""
        return INTERPRETED if (self.backend, self.device) == ("triton", "cpu") else self.backend

    @property
    def name(self) -> str:
        """Of the result file."""
        return f"fuzz-{self.backend}" + ("" if self.device == "cpu" else f"-{self.device}")


@dataclass
class Tally:
    """What came of it so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    kernels: int = 0
    configured: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """All but the findings, for the result file."""
        graphs = len(self.done)
        return {
            "graphs": graphs,
            "kernels": self.kernels,
            "configured": self.configured,
            "outcomes": dict(sorted(self.outcomes.items())),
            "routes": dict(sorted(self.routes.items())),
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "graphs_per_core_second": round(graphs / self.cpu_seconds, 3) if self.cpu_seconds else 0.0,
            "done": _ranges(self.done),
        }

    @staticmethod
    def resumed(path: Path, campaign: Campaign) -> Tally:
        """What an earlier run of the same search left, if it did."""
        if not path.exists():
            return Tally()
        content = json.loads(path.read_text())
        if (content["backend"], content["device"]) != (campaign.backend, campaign.device):
            raise SystemExit(f"{path} is of {content['backend']} on {content['device']}: name another file")
        done = {seed for first, last in content["done"] for seed in range(first, last + 1)}
        counts = (Counter(content[name]) for name in ("outcomes", "routes"))
        figures = (content[name] for name in ("kernels", "configured", "cpu_seconds", "seconds"))
        return Tally(*counts, content["rows"], done, *figures)


def search(campaign: Campaign, show: Callable[[Tally, str], None]) -> tuple[Tally, Path | None]:
    """Search; `show` gets the tally after each batch, and each finding as a line."""
    tally = Tally.resumed(campaign.out, campaign) if campaign.out is not None else Tally()
    left = [s for s in campaign.wanted if s not in tally.done]
    work = _Work(campaign, tally, left)
    threads = [threading.Thread(target=work.serve, daemon=True) for _ in range(campaign.jobs)]
    for thread in threads:
        thread.start()
    path = None
    while any(thread.is_alive() for thread in threads) or not work.news.empty():
        try:
            line = work.news.get(timeout=1.0)
        except queue.Empty:
            continue
        with work.lock:
            show(tally, line)
        if not line or work.news.empty():
            path = _write(campaign, work)
    return tally, _write(campaign, work) or path


def _write(campaign: Campaign, work: _Work) -> Path:
    with work.lock:
        tally = work.tally
        tally.seconds = work.before + time.monotonic() - work.began
        facts = {
            "backend": campaign.backend,
            "device": campaign.device,
            "device_name": device_name(campaign.device),
            "jobs": campaign.jobs,
            **tally.facts(),
        }
        rows = sorted(tally.findings, key=lambda row: row["seed"])
    return write_results(campaign.name, rows, path=campaign.out, **facts)


class _Work:
    """Batches of seeds, and the processes that take them."""

    def __init__(self, campaign: Campaign, tally: Tally, seeds: Sequence[int]) -> None:
        self.campaign, self.tally = campaign, tally
        self.began, self.before = time.monotonic(), tally.seconds
        self.end = self.began + campaign.minutes * 60 if campaign.minutes else math.inf
        self.lock = threading.Lock()
        self.news: queue.Queue[str] = queue.Queue()
        # only kernels in C++ are built many at a time
        wanted = campaign.batch or (32 if campaign.backend == "cpp" else 8)
        size = max(1, min(wanted, -(-len(seeds) // campaign.jobs)))
        self._batches = deque(list(seeds[i : i + size]) for i in range(0, len(seeds), size))

    def serve(self) -> None:
        """Keep one process busy until nothing is left."""
        process: _Process | None = None
        while (batch := self._next()) is not None:
            process = process or _Process(self.campaign, self.end)
            trouble, at, left = process.handle(batch, self._note)
            if trouble:
                process = None
                if trouble != _STOPPED:
                    self._note_trouble(trouble, at, left)
        if process is not None:
            process.close()

    def _next(self) -> list[int] | None:
        with self.lock:
            if time.monotonic() > self.end:
                return None
            return self._batches.popleft() if self._batches else None

    def _note_trouble(self, trouble: str, at: int | None, left: list[int]) -> None:
        """A process is gone: what it did last is a finding, and the rest is tried again."""
        with self.lock:
            if at is None and trouble.endswith(_BETWEEN):
                # its device is gone, and it said whose fault it was
                self._batches.extendleft([left] if left else [])
                return
            if at is None and len(left) > 1:  # while several were built: one by one it will show
                self._batches.extendleft([seed] for seed in left)
                return
            seed = left[0] if at is None else at
            rest = [s for s in left if s != seed]
            if rest:
                self._batches.appendleft(rest)
        self._note({"seed": seed, "outcome": trouble})

    def _note(self, facts: dict[str, Any]) -> None:
        with self.lock:
            if "done" in facts:
                self.tally.kernels += facts["kernels"]
                self.tally.cpu_seconds += facts["spent"]
                self.news.put("")
                return
            found = facts["outcome"]
            if facts.get("backend") is None:
                self.tally.done.add(facts["seed"])
                self.tally.outcomes[_kind(found)] += 1
                self.tally.routes[facts.get("route", "")] += 1
                self.tally.configured += facts.get("configs", 0)
            if found and found != BANNED:
                self.tally.findings.append(facts)
                self.news.put(f"seed {facts['seed']}: {found}")


def _kind(found: str) -> str:
    if not found:
        return "right"
    first = found.split(maxsplit=1)[0]
    return first if first in (BANNED, RAISED, "crashed", "hung") else "wrong"


class _Process:
    """One worker, which ends soon after a time."""

    def __init__(self, campaign: Campaign, end: float) -> None:
        self._end = end + _GRACE
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if campaign.generator == INTERPRETED:
            environment["TRITON_INTERPRET"] = "1"
        command = [sys.executable, *WORKER, campaign.generator, campaign.device]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._buffer = b""
        self._cpu = 0.0

    def handle(
        self, seeds: list[int], note: Callable[[dict[str, Any]], None]
    ) -> tuple[str, int | None, list[int]]:
        """Let it handle seeds; answer what went wrong with the process itself, at which seed, and which seeds
        are left.
        """
        assert self._process.stdin is not None
        left, at = list(seeds), None
        phase = "start"
        try:
            self._process.stdin.write(json.dumps(seeds).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return f"crashed at start: {self._process.wait()}", at, left
        while True:
            line = self._line()
            if line == _STOPPED:
                return line, at, left
            if isinstance(line, str):
                return f"{line} in phase {phase}", at, left
            if "phase" in line:
                at, phase = line["at"], line["phase"]
            elif "done" in line:
                line["spent"], self._cpu = line["cpu"] - self._cpu, line["cpu"]
                note(line)
                return "", None, []
            elif "seed" in line:
                note(line)
                at, phase = None, _BETWEEN
                if line["seed"] in left:
                    left.remove(line["seed"])

    def _line(self) -> dict[str, Any] | str:
        """The next line, or how the process ended."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            wait = min(_LOST_AFTER, self._end - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, wait))
            if not ready:
                self._process.kill()
                self._process.wait()
                return "hung" if wait == _LOST_AFTER else _STOPPED
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                return f"crashed with {self._process.wait()}"
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _ranges(seeds: set[int]) -> list[list[int]]:
    """Seeds as first and last of each unbroken run."""
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if found and found[-1][1] == seed - 1:
            found[-1][1] = seed
        else:
            found.append([seed, seed])
    return found
