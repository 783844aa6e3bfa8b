"""Two checkouts of Polyfuse against each other: `python -m polyfuse_bench checkouts BEFORE AFTER`.

Kernels, models and cold starts are measured by this checkout's harness in child processes, which find one
checkout or the other on their path. The checkouts alternate within each round, so that both see the same
drift of the machine. Each has compile caches of its own, which later rounds find filled; a cold start has
empty ones. Eager mode is timed in the same processes: its ratio, which should be 1, shows the noise.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import importlib
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyfuse_bench.backends import EAGER, POLYFUSE, cache_environment
from polyfuse_bench.child import TASKS, ChildFailed, first_line, run_child
from polyfuse_bench.devices import CPU, device_name
from polyfuse_bench.results import write_results
from polyfuse_bench.timing import QUICK, Effort, geometric_mean

__all__ = ["main", "measure"]

CAMPAIGNS = ("kernels", "models", "compile")
BEFORE, AFTER = "before", "after"

_AT_ONCE = 10
"""Kernels that one process measures: one that crashes takes the others of its process with it."""

Row = dict[str, Any]
Task = Mapping[str, Any]


def measure(task: Task) -> list[Row]:
    """The rows of `task["tasks"]`, one after another in this process."""
    return [_one(part) for part in task["tasks"]]


def _one(task: Task) -> Row:
    torch.compiler.reset()
    try:
        return dict(importlib.import_module(TASKS[task["kind"]]).measure(task))
    except Exception as error:
        return {"failures": {"all": f"{type(error).__name__}: {first_line(error)}"}}


@dataclass(frozen=True)
class Checkout:
    """A working tree of Polyfuse, under the word that the results have for it."""

    label: str
    root: Path

    @property
    def commit(self) -> str:
        """The commit that is checked out, marked where files differ from it."""
        command = ["git", "-C", str(self.root), "describe", "--always", "--dirty", "--abbrev=12"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout.strip() or "unknown"

    @property
    def path(self) -> list[str]:
        """What Python's path needs: the core and each plugin."""
        folders = [self.root / "core", *sorted((self.root / "plugins").iterdir())]
        found = [str(f) for f in folders if any(f.glob("polyfuse*/__init__.py"))]
        if not found:
            raise SystemExit(f"{self.root} is no checkout of Polyfuse: it has no core/polyfuse")
        return found

    def environment(self, caches: Path) -> dict[str, str]:
        """An environment in which `import polyfuse` finds this checkout."""
        joined = os.pathsep.join(filter(None, (*self.path, os.environ.get("PYTHONPATH"))))
        return {**cache_environment(caches), "PYTHONPATH": joined}


@dataclass
class _Samples:
    """Seconds of one target, by checkout: Polyfuse's, and eager mode's in the same processes."""

    head: Row
    polyfuse: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    eager: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, label: str, row: Row) -> None:
        """Keep what one process measured."""
        seconds = {timing["name"]: timing["median"] for timing in row.get("timings", ())}
        if "first_call" in row:
            seconds[POLYFUSE] = row["first_call"]
        if POLYFUSE in seconds:
            self.polyfuse[label].append(seconds[POLYFUSE])
        if EAGER in seconds:
            self.eager[label].append(seconds[EAGER])
        for failure in row.get("failures", {}).values():
            self.failures[label] = failure

    def row(self) -> Row:
        """The figures of the result file."""
        return {
            **self.head,
            "ratio": _ratio(self.polyfuse),
            "eager_ratio": _ratio(self.eager),
            "polyfuse": dict(self.polyfuse),
            "eager": dict(self.eager),
            "failures": self.failures,
        }


def _ratio(samples: Mapping[str, Sequence[float]]) -> float | None:
    """Seconds after over seconds before, medians of the rounds: below 1 is faster."""
    if not samples.get(BEFORE) or not samples.get(AFTER):
        return None
    return statistics.median(samples[AFTER]) / statistics.median(samples[BEFORE])


def _tasks(options: argparse.Namespace, campaign: str) -> list[Row]:
    """What a campaign measures, a task each."""
    from polyfuse_bench.campaigns import ONE_KERNEL
    from polyfuse_bench.kernels import HUGE, KERNELS, SIZES
    from polyfuse_bench.models import MAIN_FAMILIES

    effort = dataclasses.asdict(QUICK if options.quick else Effort(max_seconds=20.0))
    common = {"backends": (EAGER, POLYFUSE), "effort": effort, "device": options.device}
    if campaign == "kernels":
        sizes = options.sizes or (SIZES if options.device == CPU else (HUGE,))
        tasks: list[Row] = [
            {"kind": "kernel", "name": name, "size": size, **common} for size in sizes for name in KERNELS
        ]
    else:
        work = {**common, "dtype": options.dtype, "size": "tiny" if options.tiny else "real"}
        tasks = [
            {"kind": "model" if campaign == "models" else "compile", "name": name, "mode": mode, **work}
            for name in MAIN_FAMILIES
            for mode in ("forward", "train")
        ]
        if campaign == "compile":
            one = {"kind": "compile", "name": ONE_KERNEL, "mode": "forward", **work, "size": "small"}
            tasks = [{**task, "backend": POLYFUSE} for task in (one, *tasks)]
    return [task for task in tasks if not options.only or task["name"] in options.only]


def _compare(
    options: argparse.Namespace, campaign: str, checkouts: Sequence[Checkout], folder: Path
) -> Iterator[Row]:
    """The rows of one campaign, each when all its rounds are over."""
    tasks = _tasks(options, campaign)
    size = _AT_ONCE if campaign == "kernels" else 1
    for first in range(0, len(tasks), size):
        group = tasks[first : first + size]
        found = [_Samples(_head(campaign, task)) for task in group]
        for round_number in range(options.rounds):
            for checkout in checkouts[:: 1 if round_number % 2 == 0 else -1]:
                caches = folder / checkout.label
                if campaign == "compile":
                    caches = folder / f"{checkout.label}-{first}-{round_number}"
                for samples, row in zip(found, _child(checkout, group, caches), strict=True):
                    samples.add(checkout.label, row)
        yield from (samples.row() for samples in found)


def _child(checkout: Checkout, tasks: Sequence[Task], caches: Path) -> list[Row]:
    task = {"kind": "checkouts", "tasks": list(tasks)}
    try:
        return list(run_child(task, environment=checkout.environment(caches), timeout=3600.0))
    except ChildFailed as failure:
        return [{"failures": {"all": str(failure)}}] * len(tasks)


def _head(campaign: str, task: Task) -> Row:
    names = ("name", "size", "mode", "dtype", "device")
    return {"campaign": campaign, **{name: task[name] for name in names if name in task}}


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """By campaign: the geometric mean and the worst of the ratios, and how far eager mode's are from 1."""
    found = {}
    for campaign in dict.fromkeys(row["campaign"] for row in rows):
        own = [row for row in rows if row["campaign"] == campaign]
        ratios = [row["ratio"] for row in own if row["ratio"] is not None]
        found[campaign] = {
            "rows": len(own),
            "compared": len(ratios),
            "geometric_mean": geometric_mean(ratios),
            "worst": max(ratios, default=None),
            "eager_geometric_mean": geometric_mean([r["eager_ratio"] for r in own if r["eager_ratio"]]),
        }
    return found


def main(arguments: Sequence[str]) -> int:
    """Measure both checkouts and write the ratios."""
    options = _parser().parse_args(arguments)
    checkouts = (Checkout(BEFORE, options.before.resolve()), Checkout(AFTER, options.after.resolve()))
    facts: dict[str, Any] = {
        "commits": {checkout.label: checkout.commit for checkout in checkouts},
        "rounds": options.rounds,
        "device_name": device_name(options.device),
    }
    for checkout in checkouts:
        for entry in checkout.path:
            compileall.compile_dir(entry, quiet=2)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as fresh:
        for campaign in options.campaigns:
            caches = options.cache if options.cache and campaign != "compile" else Path(fresh)
            for row in _compare(options, campaign, checkouts, caches.resolve()):
                rows.append(row)
                print(_line(row), flush=True)
                # a run that is interrupted keeps the rows it has
                write_results("checkouts", rows, path=options.out, summary=_summary(rows), **facts)
    for campaign, figures in _summary(rows).items():
        print(campaign, figures)
    return 0


def _line(row: Row) -> str:
    what = " ".join(str(row[name]) for name in ("campaign", "name", "size", "mode") if name in row)
    ratio, eager = (row[name] and f"{row[name]:.3f}" for name in ("ratio", "eager_ratio"))
    failures = "; ".join(f"{label}: {text}" for label, text in row["failures"].items())
    return f"{what}: after/before {ratio}, eager {eager} {failures}".rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="polyfuse_bench checkouts", description=__doc__)
    parser.add_argument("before", type=Path, help="working tree of the earlier commit")
    parser.add_argument("after", type=Path, help="working tree of the later one")
    parser.add_argument("--campaigns", type=_names, default=CAMPAIGNS, help="kernels,models,compile")
    parser.add_argument("--only", type=_names, default=(), help="names of kernels and models")
    parser.add_argument("--sizes", type=_names, default=(), help="small,large: of kernels; default all")
    parser.add_argument(
        "--cache", type=Path, help="folder of caches for kernels and models; default a fresh one"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes of each checkout")
    parser.add_argument("--dtype", default="float32", help="of models")
    parser.add_argument("--device", default=CPU)
    parser.add_argument("--tiny", action="store_true", help="tiny models in place of real widths")
    parser.add_argument("--quick", action="store_true", help="few samples: shows that it works")
    parser.add_argument("--out", type=Path, help="result file; default benchmarks/results/checkouts.json")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
