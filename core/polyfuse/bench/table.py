"""Results in a terminal, and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from polyfuse.bench.campaign import Measured, Point, Results
from polyfuse.bench.engine import EAGER
from polyfuse.bench.statistics import spark

FORMAT = 1
"""Raised when a field of the JSON changes its meaning."""


def as_data(results: Results) -> dict[str, Any]:
    """Results as plain data for JSON."""
    plan = results.plan
    return {
        "format": FORMAT,
        "subject": plan.subject,
        "arguments": list(plan.arguments),
        "training": plan.training,
        "budget": plan.budget,
        "seconds": results.seconds,
        "machine": asdict(results.machine),
        "warnings": results.warnings,
        "points": [
            {**asdict(point), "sizes": dict(point.sizes), "engines": [_row(m, point) for m in point.engines]}
            for point in results.points
        ],
        "not_run": [asdict(item) for item in results.not_run],
    }


def _row(measured: Measured, point: Point) -> dict[str, Any]:
    row = asdict(measured)
    if measured.latency is not None:
        row["latency"]["milliseconds"] = list(row["latency"].pop("turns"))
        row["throughput"] = _throughput(measured, point)
    return row


def _throughput(measured: Measured, point: Point) -> float:
    """Samples of a batch per second, or calls where no batch is known."""
    assert measured.latency is not None
    return point.sizes.get("batch", 1) * 1e3 / measured.latency.median


def print_results(console: Console, results: Results) -> None:
    """The tables, then what was not run, then why times may be doubted."""
    console.print(results.machine.summary(), markup=False, highlight=False)
    for point in results.points:
        console.print(_table(point))
    if results.points:
        console.print(
            "speed-up: eager mode's time by this one's next to it, the median over turns; below, bounds that "
            "hold in 90 of 100 resamplings (~: no difference is sure). over time: the median of each turn",
            style="dim",
            highlight=False,
        )
    for item in results.not_run:
        console.print(f"not run: {item.what}: {item.why}", style="yellow", markup=False, highlight=False)
    for text in results.warnings:
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)


def _table(point: Point) -> Table:
    sizes = " ".join(f"{name}={value}" for name, value in point.sizes.items())
    title = f"{point.about} on {point.device}" + (f", {sizes}" if sizes else "")
    table = Table(title=title, title_justify="left")
    table.add_column("engine", no_wrap=True)
    for heading in ("compile s\ncold, warm", "median ms\np90, p99", "speed-up", "per s", "peak MiB", "error"):
        table.add_column(heading, justify="right")
    table.add_column("over time", no_wrap=True)
    for item in point.engines:
        if item.latency is None:
            table.add_row(item.engine, "", "failed" if item.failed else "", "", "", "", "", "")
            continue
        found = item.latency
        table.add_row(
            item.engine,
            "" if item.cold is None or item.warm is None else f"{item.cold:.1f}, {item.warm:.1f}",
            f"{found.median:.3g} ±{found.spread:.0%}\n{found.p90:.3g}, {found.p99:.3g}",
            _speed_up(item),
            f"{_throughput(item, point):.4g}",
            f"{item.memory / 2**20:.0f}" if item.memory else "–",
            _error(item),
            spark(found.turns),
        )
    return table


def _speed_up(item: Measured) -> str:
    ratio = item.speed_up
    if ratio is None:
        return ""
    style = "green" if ratio.is_sure and ratio.value > 1 else "red" if ratio.is_sure else "dim"
    mark = "" if ratio.is_sure else "~ "
    return f"[{style}]{mark}{ratio.value:.2f} x[/]\n[dim]{ratio.low:.2f}..{ratio.high:.2f}[/]"


def _error(item: Measured) -> str:
    check = item.check
    if item.engine == EAGER or not check:
        return ""
    if not check["compared"]:
        return "random"
    return f"{check['error']:.1e}" if check["ok"] else f"[red]{check['error']:.1e}\nDIFFERS[/]"
