"""A training step of a model that is spread over processes on the CPU, by eager mode, Inductor and Polyfuse.

    OMP_NUM_THREADS=1 PYTHONPATH=benchmarks torchrun --standalone --nproc-per-node 4 \
        -m polyfuse_bench.parallel_training --out FILE

Each process runs this file; they talk over Gloo. Sides alternate in the same processes. A step costs the CPU
time of all processes, and lasts as long as in the slowest one. Where processes share cores with each other or
with other programs, only the former says how fast a side is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from polyfuse_bench.parallel_cases import CASES, SMALL, Sizes, Step
from polyfuse_bench.results import write_results

SIDES = ("eager", "inductor", "polyfuse")
TOLERANCES = {"FSDP2, by block, bfloat16": 2e-2}
"""Largest distance of losses from eager mode's, where it is not that of float32."""


@dataclass
class Row:
    """What was measured of one case by one side.

    Attributes:
        cpu_ms: CPU time of all processes in a step, of each round.
        milliseconds: of a step in the slowest process, of each round.
        compile_seconds: CPU time of all processes before the first round.
        distance: of the losses of three steps from those of the first side, over their norm.
        error: why there is no time.
    """

    case: str
    side: str
    cpu_ms: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    distance: float = 0.0
    error: str = ""


def _over_all(value: float, how: dist.ReduceOp.RedOpType) -> float:
    """One number of all processes' numbers, known to each of them."""
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, how)
    return float(found)


def _begun(row: Row, sizes: Sizes) -> tuple[Step | None, torch.Tensor]:
    """A case by one side after three steps, and the losses of these."""
    begin, losses, step = time.process_time(), torch.zeros(3), None
    try:
        step = CASES[row.case](row.side, sizes, dist.get_rank(), dist.get_world_size())
        losses = torch.stack([step() for _ in range(3)]).float()
    except Exception as error:
        row.error = f"{type(error).__name__}: {error}"[:300]
        print(f"{row.case} by {row.side}, rank {dist.get_rank()}: {row.error}", file=sys.stderr, flush=True)
    if _over_all(float(bool(row.error)), dist.ReduceOp.MAX):
        row.error, step = row.error or "another process failed", None
    row.compile_seconds = _over_all(time.process_time() - begin, dist.ReduceOp.SUM)
    return step, losses


def _timed(step: Step, count: int) -> tuple[float, float]:
    """CPU milliseconds of all processes, and those of the slowest one, in a step."""
    dist.barrier()
    cpu, clock = time.process_time(), time.perf_counter()
    for _ in range(count):
        step()
    taken = (time.perf_counter() - clock) * 1e3 / count
    used = (time.process_time() - cpu) * 1e3 / count
    return _over_all(used, dist.ReduceOp.SUM), _over_all(taken, dist.ReduceOp.MAX)


def measure(case: str, sides: Sequence[str], sizes: Sizes, rounds: int, count: int) -> list[Row]:
    """All sides of one case; one that fails in a process is left out in all."""
    torch.compiler.reset()
    rows = [Row(case, side) for side in sides]
    steps: dict[str, Step] = {}
    first: torch.Tensor | None = None
    for row in rows:
        step, losses = _begun(row, sizes)
        if step is None:
            continue
        first = losses if first is None else first
        apart = float((losses - first).norm() / first.norm().clamp_min(1e-30))
        row.distance = _over_all(apart, dist.ReduceOp.MAX)
        if row.distance > TOLERANCES.get(case, 1e-5):
            row.error = f"its losses are {row.distance:.2g} of their norm away from {sides[0]}'s"
        else:
            steps[row.side] = step
    for number in range(rounds):
        turn = number % len(rows)
        for row in rows[turn:] + rows[:turn]:
            if row.side in steps:
                cpu, taken = _timed(steps[row.side], count)
                row.cpu_ms.append(round(cpu, 3))
                row.milliseconds.append(round(taken, 3))
    return rows


def _text(rows: Sequence[Row]) -> str:
    parts = [
        f"{row.side} {statistics.median(row.cpu_ms):.1f} ms CPU" if row.cpu_ms else f"{row.side}: {row.error}"
        for row in rows
    ]
    return f"{rows[0].case}: {', '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases one after another, and write what was measured after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="in a round")
    parser.add_argument("--only", default="", help="words of the cases to measure, with commas between them")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--small", action="store_true", help="small sizes, to see that everything works")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    # sides share the code of the models, each with graphs of its own
    torch._dynamo.config.recompile_limit = 64
    words = [word for word in given.only.split(",") if word]
    sizes, rows = SMALL if given.small else Sizes(), list[Row]()
    for case in CASES:
        if words and not any(word in case for word in words):
            continue
        found = measure(case, given.sides.split(","), sizes, given.rounds, given.steps)
        rows += found
        if dist.get_rank() == 0:
            print(_text(found), flush=True)
            if given.out is not None:
                facts = {"ranks": dist.get_world_size(), "sizes": asdict(sizes)}
                write_results("parallel_training", rows, path=given.out, **facts)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
