"""What `polyfuse explain --world` says of a training step, beside the processes of such a world.

    PYTHONPATH=benchmarks python -m polyfuse_bench.simulated_worlds --ranks 2,4 --rounds 3 --out FILE

For each number of ranks, the costs of collectives are measured on this machine; then the step of each case
(`parallel_cases.py`) is simulated in one process and timed in as many as there are ranks, over Gloo and with
one thread each, in turns. Where the machine has other work, `--preferred` lets the timed steps, some seconds,
go before it (Linux, by root).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfuse.base.settings import child_environment, environment
from polyfuse_bench.parallel_cases import CASES, Sizes
from polyfuse_bench.results import write_results

USUAL = ("DDP", "FSDP2, by block", "tensor parallel")
SECONDS = 600
"""After which processes are taken to hang."""

SIZES = Sizes(width=256, length=64, blocks=4)
LARGEST = 4 << 20
PREFERRED = "BENCH_PREFERRED"
STEPS = 12
"""In a process, after those that compile."""


@dataclass
class Row:
    """One case in one world.

    Attributes:
        simulated: milliseconds of a step by `polyfuse explain --world`, of each round.
        computing, exposed: what of it computes, and waits.
        real: milliseconds of a step in the slowest process, by the median of its steps.
        cpu: CPU milliseconds of all processes in a step.
        ratio: of the medians of both.
    """

    case: str
    ranks: int
    simulated: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    real: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    ratio: float = 0.0


@contextmanager
def preferred() -> Iterator[None]:
    """Let this process go before all others of the machine meanwhile, if that was asked for."""
    if not environment(PREFERRED):
        yield
        return
    try:
        _schedule(os.SCHED_RR, 1)
        yield
    finally:
        _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def program(case: str, answer: str) -> None:
    """What each process runs, simulated or not: a few steps, and what they took; or the measurement of
    collectives.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if not case:
        from polyfuse.distributed.measure import measure_collectives

        with preferred():
            measure_collectives(largest=LARGEST)
        dist.destroy_process_group()
        return
    step = CASES[case]("polyfuse", SIZES, rank, world)
    for _ in range(3):
        step()
    dist.barrier()
    taken, cpu = [], time.process_time()
    with preferred():
        for _ in range(STEPS):
            begun = time.perf_counter()
            step()
            taken.append(time.perf_counter() - begun)
    cpu = (time.process_time() - cpu) / STEPS
    Path(f"{answer}{rank}").write_text(json.dumps({"seconds": statistics.median(taken), "cpu": cpu}))
    dist.barrier()
    dist.destroy_process_group()


def launched(ranks: int, *words: str, **changes: str) -> None:
    """Run a module of Python's in as many processes as torch's launcher starts."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    _run([*command, f"--nproc-per-node={ranks}", "-m", *words], **changes)


def _run(command: Sequence[str], **changes: str) -> str:
    paths = f"{Path(__file__).parents[1]}:{environment('PYTHONPATH')}"
    given = child_environment(OMP_NUM_THREADS="1", PYTHONPATH=paths, **changes)
    done = subprocess.run(command, env=given, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True)
    return done.stdout


def simulated(case: str, ranks: int, folder: Path, **changes: str) -> dict[str, Any]:
    """What one process says of a world."""
    command = [sys.executable, "-W", "ignore", "-m", "polyfuse", "explain", "--json", "--world", str(ranks)]
    found = _run(
        [*command, "-m", "polyfuse_bench.simulated_worlds", "--be", case, str(folder / "one")], **changes
    )
    world: dict[str, Any] = json.loads(found[found.index("{") :])["worlds"][0]
    return world


def real(case: str, ranks: int, folder: Path, **changes: str) -> tuple[float, float]:
    """Seconds of the slowest process, and CPU seconds of all."""
    launched(ranks, "polyfuse_bench.simulated_worlds", "--be", case, str(folder / "rank"), **changes)
    answers = [json.loads((folder / f"rank{rank}").read_text()) for rank in range(ranks)]
    return max(a["seconds"] for a in answers), sum(a["cpu"] for a in answers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--be", nargs=2, metavar=("CASE", "ANSWER"), help=argparse.SUPPRESS)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--only", default=";".join(USUAL), help="cases, with semicolons between them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preferred", action="store_true", help="timed steps go before other programs")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.be:
        program(*given.be)
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="polyfuse-worlds-") as name:
        folder = Path(name)
        changes = {"POLYFUSE_CACHE_DIR": str(folder / "cache"), PREFERRED: "1" if given.preferred else ""}
        for ranks in map(int, given.ranks.split(",")):
            launched(ranks, "polyfuse_bench.simulated_worlds", "--be", "", "", **changes)
            found = [Row(case, ranks) for case in given.only.split(";")]
            for number in range(given.rounds):
                for row in found:
                    for turn in (0, 1):
                        if turn == number % 2:
                            world = simulated(row.case, ranks, folder, **changes)
                            row.simulated.append(round(world["seconds"] * 1e3, 2))
                            row.computing.append(round(world["computing"] * 1e3, 2))
                            row.exposed.append(round(world["exposed"] * 1e3, 2))
                        else:
                            seconds, cpu = real(row.case, ranks, folder, **changes)
                            row.real.append(round(seconds * 1e3, 2))
                            row.cpu.append(round(cpu * 1e3, 2))
            for row in found:
                row.ratio = round(statistics.median(row.simulated) / statistics.median(row.real), 3)
                print(row, flush=True)
            rows += found
            if given.out is not None:
                write_results("simulated_worlds", rows, path=given.out, steps=STEPS)


if __name__ == "__main__":
    main()
