"""`python -m polyfuse_bench architectures`: its options, the progress, and the closing table."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from polyfuse_bench.architectures.campaign import LOG, Plan, run_campaign
from polyfuse_bench.architectures.catalogue import LIBRARIES
from polyfuse_bench.architectures.libraries import library
from polyfuse_bench.architectures.measure import Settings
from polyfuse_bench.architectures.outcome import AGREE, OUTCOMES
from polyfuse_bench.devices import device_name
from polyfuse_bench.machine import machine
from polyfuse_bench.results import RESULTS

SHORT = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def run(options: argparse.Namespace, console: Console) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the campaign that the command line asks for; answer its rows and the facts to write beside them."""
    settings = Settings(
        dtypes=tuple(SHORT.get(name, name) for name in options.dtypes or ("float32", "bfloat16")),
        device=options.device,
        inductor=options.inductor,
    )
    out = options.out or RESULTS / f"architectures-{options.device}.json"
    plan = Plan(
        settings=settings,
        libraries=tuple(options.libraries or LIBRARIES),
        only=tuple(options.only or ()),
        jobs=options.jobs,
        seconds=60 * options.minutes if options.minutes else math.inf,
        limit=options.patience_each,
        log=out.with_suffix(LOG),
        resume=options.resume is not None,
        cache=options.cache,
        known=options.known,
    )
    if plan.resume and out.exists() and not plan.log.exists():
        _log_of(out, plan.log)
    began = time.monotonic()

    def show(row: dict[str, Any], done: int, total: int) -> None:
        name = f"{row['library']}:{row['name']} {row['dtype']}"
        words = f"{done}/{total} {name}: {row['outcome']} {row['seconds']:.0f} s {row['detail']}"
        console.print(words.rstrip(), markup=False, highlight=False, soft_wrap=True)

    rows = run_campaign(plan, show)
    console.print(summary(rows))
    facts = {
        "settings": dataclasses.asdict(settings),
        "device_name": device_name(options.device),
        "libraries": {name: _version(name) for name in plan.libraries},
        "jobs": plan.jobs,
        "limit": plan.limit,
        "seconds": round(time.monotonic() - began),
    }
    return rows, facts


def _log_of(out: Path, log: Path) -> None:
    """Go on from a result file whose log is gone."""
    content = json.loads(out.read_text())
    here = machine()
    if (content["machine"]["cpu"], content["machine"]["torch"]) != (here.cpu, here.torch):
        raise SystemExit(f"{out} is of another machine: give another --out, or run without --resume")
    log.write_text("".join(json.dumps(row) + "\n" for row in content["rows"]))


def _version(name: str) -> str:
    module = library(name)
    return "not installed" if module is None else str(module.__version__)


def summary(rows: Sequence[dict[str, Any]]) -> Table:
    """Counts by outcome and dtype."""
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    counts = collections.Counter((row["outcome"], row["dtype"]) for row in rows)
    table = Table("outcome", *dtypes, title="Architectures")
    for outcome in OUTCOMES:
        if any(counts[outcome, dtype] for dtype in dtypes):
            table.add_row(outcome, *(str(counts[outcome, dtype]) for dtype in dtypes))
    seconds = sorted(row["seconds"] for row in rows if row["outcome"] == AGREE)
    if seconds:
        table.caption = (
            f"{seconds[len(seconds) // 2]:.1f} seconds each in the median, {sum(seconds):.0f} in all"
        )
    return table
