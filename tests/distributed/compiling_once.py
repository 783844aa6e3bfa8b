"""Ranks that compile one program, and count what each of them had to do."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters

from polyfuse.autotune import search, tuner
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.autotune.search import TrialBatch
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.digest import digest
from polyfuse.base.settings import Settings, changed_environment
from polyfuse.cache import KernelStore, archive
from polyfuse.cache.graphs import graph_counts
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import autotuned_problems
from polyfuse.torch_compat.groups import this_rank


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 8))


def main(
    rank: int, count: int, meeting: str, answers: str, mode: str, folders: str = "1", times: str = ""
) -> None:
    """Train a network, and run a function with collectives, in one of so many cache folders."""
    own = f"{Settings.resolve().cache_dir}-{rank % int(folders)}"
    with changed_environment({"POLYFUSE_CACHE_DIR": own}):
        trained(rank, count, meeting, answers, mode, times)


def trained(rank: int, count: int, meeting: str, answers: str, mode: str, times: str) -> None:
    """Say what this rank had to do."""
    dist.init_process_group("gloo", init_method=Path(meeting).as_uri(), rank=rank, world_size=count)
    from torch.distributed import _functional_collectives as collectives

    import polyfuse.compiler.stages as stages

    # as if each rank were on a host of its own: those share trials
    platform.node = lambda: f"host of rank {rank}"
    helped: list[str] = []
    run_batch = Tuner.run_batch

    def counted_batch(self: Tuner, batch: TrialBatch) -> Mapping[str, float | str]:
        helped.append(batch.problem.about)
        return run_batch(self, batch)

    def made_up(runner: Any, problem: Any, programs: Sequence[BuiltProgram], *_: Any) -> Mapping[str, float]:
        return {program.name: 1 + int(digest(program.name)[:4], 36) / 36**4 for program in programs}

    Tuner.run_batch = counted_batch  # type: ignore[method-assign]
    if times == "made up":
        search.run_trials = tuner.run_trials = made_up  # type: ignore[assignment]

    lowered = [0]
    original = stages.compile_whole

    def counted(*args: object) -> object:
        lowered[0] += 1
        return original(*args)  # type: ignore[arg-type]

    stages.compile_whole = counted  # type: ignore[assignment]

    builds = [0]
    make = KernelStore._make

    def built(store: KernelStore, folder: Path, kernels: Any, build: Any) -> None:
        # what comes from another rank is copied, not built
        builds[0] += 0 if isinstance(build, partial) and build.func is archive._write else len(kernels)
        make(store, folder, kernels, build)

    KernelStore._make = built  # type: ignore[method-assign]

    def total(x: Tensor) -> Tensor:
        return collectives.all_reduce((x * 3).sin() @ x, "sum", dist.group.WORLD).cos()

    chosen = {"mode": mode} if mode else {}
    dist.barrier()
    # ranks are one process after the other here, so that all but the first find what it made
    run = torch.compile(total, backend="polyfuse", **chosen)
    sums = run(torch.ones(16, 16) * (rank + 1))
    model = network()
    step = torch.compile(model, backend="polyfuse", **chosen)
    step(torch.ones(4, 8)).square().sum().backward()
    counts = graph_counts()
    found = {
        "hits": counts.hits,
        "misses": counts.misses,
        "captured": counts.captured,
        "traced": counters["stats"]["unique_graphs"],
        "lowered": lowered[0],
        "bypasses": dict(counts.bypasses),
        "problems": list(autotuned_problems()) if mode else [],
        "decided": [
            (d.kind, d.first, d.second)
            for report in last_reports()
            for d in report.decisions
            if d.kind in ("choice", "tune")
        ],
        "builds": builds[0],
        "helped": helped,
        "sum": sums.sum().item(),
        "rank": this_rank(),
    }
    dist.barrier()
    Path(f"{answers}{rank}").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
