"""The command line: `python -m polyfuse_bench WHAT`; `all` is the main campaigns and the report."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polyfuse_bench import campaigns, report
from polyfuse_bench.backends import DEFAULT_BACKENDS, EAGER, POLYFUSE
from polyfuse_bench.devices import CPU, copy_rate, device_name
from polyfuse_bench.matrix_rate import matrix_rate
from polyfuse_bench.results import finished_rows, write_results
from polyfuse_bench.timing import QUICK, Effort
from polyfuse_bench.turns import run_together

CONSOLE = Console()
DOCS = Path(__file__).resolve().parents[2] / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["fuzz"]:
        from polyfuse_bench.fuzz.command import main as fuzz  # it has options of its own

        return fuzz(given[1:])
    if given[:1] == ["checkouts"]:
        from polyfuse_bench.checkouts import main as checkouts

        return checkouts(given[1:])
    options = _parser().parse_args(given)
    commands = (
        ("kernels", "models", "linear", "compile", "memory", "report")
        if options.what == "all"
        else (options.what,)
    )
    for command in commands:
        if command == "report":
            for page in report.write_pages(options.docs):
                CONSOLE.print(f"wrote {page}")
        elif command == "opdb":
            _operators(options)
        elif command == "architectures":
            _architectures(options)
        else:
            _measure(command, options)
    return 0


def _measure(kind: str, options: argparse.Namespace) -> None:
    """Run one campaign, showing each row as it comes, and write its file."""
    began = time.monotonic()
    effort = dataclasses.replace(QUICK if options.quick else Effort(), patience=options.patience)
    if options.rounds:
        effort = dataclasses.replace(effort, rounds=options.rounds)
    together = options.together if kind in ("models", "kernels", "engines", "callers") else 1
    device = () if options.device == CPU else (options.device,)
    facts: dict[str, Any] = {
        "backends": options.backends,
        "effort": dataclasses.asdict(effort),
        "device": options.device,
        "device_name": device_name(options.device),
    }
    rows, ahead = [], options.ahead
    if options.resume is not None:
        rows, before = finished_rows(options.resume, **facts)
        ahead = max(ahead, before)
    known = frozenset((row["name"], row.get("dtype", "")) for row in rows)
    plan = campaigns.CAMPAIGNS[kind](dataclasses.replace(_selection(options, effort), known=known))
    if device and kind in ("kernels", "decode"):
        facts["copy_rate"] = copy_rate(options.device)
    if kind == "gemm":
        facts["matrix_rates"] = {options.dtype: matrix_rate(options.device, options.dtype)}
    if kind in ("engines", "callers"):
        from polyfuse_bench.engines import versions

        facts["engines"] = versions()
    if kind == "callers":
        from polyfuse_bench.callers import CALLERS

        facts["callers"] = CALLERS
    if ahead:
        facts["ahead"] = ahead
    name = "-".join(filter(None, (kind, *device, options.label)))
    for row in _progress(kind, plan, together, began + options.limit if options.limit else math.inf):
        rows.append(row)
        CONSOLE.print(report.one_line(kind, row), highlight=False)
        if options.out is not None:
            # a long run that is interrupted keeps the rows it has
            write_results(name, rows, path=options.out, **facts)
    _keep(name, rows, options, **facts)


def _selection(options: argparse.Namespace, effort: Effort) -> campaigns.Selection:
    return campaigns.Selection(
        backends=tuple(options.backends),
        only=tuple(options.only or ()),
        modes=tuple(options.modes),
        sizes=tuple(options.sizes),
        model_size="tiny" if options.tiny else "real",
        batch=options.batch,
        seq=options.seq,
        dtype=options.dtype,
        device=options.device,
        repeats=options.repeats,
        together=options.together,
        ahead=options.ahead,
        limit=options.limit,
        cache=options.cache,
        effort=effort,
    )


def _progress(
    kind: str, plan: Sequence[Callable[[], dict[str, Any]]], together: int, until: float
) -> Iterable[dict[str, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=CONSOLE, transient=True) as progress:
        task = progress.add_task(kind, total=len(plan))
        for first in range(0, len(plan), together):
            if time.monotonic() > until:
                return
            rows = plan[first : first + together]
            for row in run_together(rows) if together > 1 else (measure() for measure in rows):
                yield row
                progress.advance(task)


def _operators(options: argparse.Namespace) -> None:
    from polyfuse_bench.opdb import sweep
    from polyfuse_bench.opdb.check import Outcome
    from polyfuse_bench.opdb.status import GOOD

    backend = next((name for name in options.backends if name != EAGER), POLYFUSE)
    if POLYFUSE in options.backends:
        backend = POLYFUSE
    settings = sweep.SweepSettings(
        backend=backend,
        dtypes=tuple(options.dtypes or ("float32", "int64", "bfloat16")),
        samples=options.samples,
        dynamic=options.dynamic,
        gradients=options.gradients,
        only=tuple(options.only or ()),
        shards=options.shards,
        timeout=options.timeout,
        device=options.device,
        limit=options.limit,
        kernels=options.kernels,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=CONSOLE, transient=True) as progress:
        task = progress.add_task(f"opdb {backend}", total=None)

        def show(done: int, total: int, outcome: Outcome) -> None:
            progress.update(task, completed=done, total=total)
            if outcome.status not in GOOD:
                line = f"{outcome.op} {outcome.dtype}: {outcome.status}: {outcome.detail}"
                CONSOLE.print(line, markup=False, highlight=False, soft_wrap=True)

        rows = sweep.run_sweep(settings, show)
    CONSOLE.print(sweep.summary_table(rows))
    kind = "opdb" + "-gradients" * options.gradients + "-dynamic" * options.dynamic
    kind += "-kernels" * options.kernels
    if "@" in backend:
        kind += f"-{backend.partition('@')[2]}"
    if options.device != CPU:
        kind += f"-{options.device}"
    facts = {"settings": dataclasses.asdict(settings), "device_name": device_name(options.device)}
    _keep(kind, rows, options, **facts)


def _architectures(options: argparse.Namespace) -> None:
    from polyfuse_bench.architectures import command

    rows, facts = command.run(options, CONSOLE)
    name = f"architectures-{options.device}"
    CONSOLE.print(f"wrote {write_results(name, rows, path=options.out, **facts)}")


def _keep(kind: str, rows: Sequence[Any], options: argparse.Namespace, **facts: Any) -> None:
    """Write a result file; a partial or quick run replaces stored results only if --out names them."""
    if options.out is None and (options.only or options.quick):
        CONSOLE.print("not stored: --only and --quick write a file only with --out")
        return
    CONSOLE.print(f"wrote {write_results(kind, rows, path=options.out, **facts)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="polyfuse_bench", description=__doc__)
    others = ("opdb", "architectures", "fuzz", "report", "all")
    parser.add_argument("what", choices=(*campaigns.CAMPAIGNS, *others))
    parser.add_argument("--backends", type=_names, default=DEFAULT_BACKENDS, help="comma-separated")
    parser.add_argument("--only", type=_names, help="names of kernels, models or operators, comma-separated")
    parser.add_argument("--out", type=Path, help="result file; default benchmarks/results/<kind>.json")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the written pages")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that it works, measures nothing"
    )
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds that a candidate's first calls may take; 0: any"
    )
    parser.add_argument("--rounds", type=int, default=0, help="samples of each candidate; 0: fifteen")
    measured = parser.add_argument_group("kernels, models, compile, memory")
    measured.add_argument("--modes", type=_names, default=campaigns.DEFAULT_MODES)
    measured.add_argument(
        "--sizes", type=_names, default=(), help="small,large on the CPU; huge elsewhere; or numbers"
    )
    measured.add_argument("--tiny", action="store_true", help="tiny models in place of real widths")
    measured.add_argument("--batch", type=int)
    measured.add_argument("--seq", type=int)
    measured.add_argument("--dtype", default="float32")
    measured.add_argument("--device", default=CPU, help="cpu, cuda")
    measured.add_argument("--label", default="", help="ending of the result file's name, for variants")
    measured.add_argument("--repeats", type=int, default=3, help="cold starts of each backend")
    measured.add_argument(
        "--together",
        type=int,
        default=1,
        help="rows of models, kernels, engines (compile: processes) prepared together, then timed in turn",
    )
    measured.add_argument("--ahead", type=int, default=0, help="processes that compile matmuls beforehand")
    measured.add_argument(
        "--resume",
        type=Path,
        nargs="?",
        const=Path(),
        help="result file of matmuls or engines whose rows stay; architectures: no file is named",
    )
    measured.add_argument(
        "--cache",
        default="",
        help="autotune_backends, serving: keep kernels here; a second run only times them",
    )
    operators = parser.add_argument_group("opdb")
    operators.add_argument("--dtypes", type=_names, help="opdb: float32,int64,bfloat16 by default")
    operators.add_argument("--samples", type=int, default=2)
    operators.add_argument("--dynamic", action="store_true", help="compile with dynamic=True")
    operators.add_argument("--gradients", action="store_true", help="compare gradients too")
    operators.add_argument(
        "--kernels", action="store_true", help="run each kernel of Polyfuse's beside the interpreter too"
    )
    operators.add_argument("--shards", type=int, default=2)
    operators.add_argument("--timeout", type=float, default=120.0, help="seconds one operator may take")
    operators.add_argument("--limit", type=float, default=0.0, help="seconds that it may take")
    trials = parser.add_argument_group("architectures (also --only PATTERNS, --dtypes f32,bf16, --device)")
    trials.add_argument("--jobs", type=int, default=1, help="processes side by side")
    trials.add_argument("--minutes", type=float, default=0.0, help="begin no architecture after; 0: no limit")
    trials.add_argument("--libraries", type=_names, help="transformers,timm,torchvision,diffusers")
    trials.add_argument("--known", type=Path, help="log of another run: what was large there comes last")
    trials.add_argument("--inductor", action="store_true", help="compare with Inductor's errors too")
    trials.add_argument("--patience-each", type=float, default=90.0, help="seconds one architecture may take")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
