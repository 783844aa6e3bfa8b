"""Results in a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.measure import Measurement
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
        console.print(_fitting_table(console, point))
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


_LEFT_OUT_FIRST = ("over time", "per s", "peak MiB")
"""Columns that a narrow terminal does without, so that numbers are shown whole."""


def _fitting_table(console: Console, point: Point) -> Table:
    """The table, with as many columns as the terminal has room for."""
    unlimited = console.options.update(width=1000)
    for count in range(len(_LEFT_OUT_FIRST)):
        table = _table(point, _LEFT_OUT_FIRST[:count])
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            return table
    return _table(point, _LEFT_OUT_FIRST)


def _table(point: Point, left_out: Sequence[str]) -> Table:
    sizes = " ".join(f"{name}={value}" for name, value in point.sizes.items())
    title = f"{point.about} on {point.device}" + (f", {sizes}" if sizes else "")
    table = Table(title=title, title_justify="left")
    rows = [_cells(item, point) for item in point.engines]
    numbers = ("compile s\ncold, warm", "median ms\np90, p99", "speed-up", "per s", "peak MiB", "error")
    shown = [heading for heading in ("engine", *numbers, "over time") if heading not in left_out]
    for heading in shown:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row.get(heading.partition("\n")[0], "") for heading in shown))
    return table


def _cells(item: Measured, point: Point) -> dict[str, str]:
    """What stands in the columns, by their headings."""
    if item.latency is None:
        return {"engine": item.engine, "median ms": "failed" if item.failed else ""}
    found = item.latency
    median, p90, p99 = map(_number, (found.median, found.p90, found.p99))
    return {
        "engine": item.engine,
        "compile s": "" if item.cold is None or item.warm is None else f"{item.cold:.1f}, {item.warm:.1f}",
        "median ms": f"{median} ±{found.spread:.0%}\n{p90}, {p99}",
        "speed-up": _speed_up(item),
        "per s": _number(_throughput(item, point)),
        "peak MiB": f"{item.memory / 2**20:.0f}" if item.memory else "–",
        "error": _error(item),
        "over time": spark(found.turns),
    }


def _number(value: float) -> str:
    """Three digits, or all before the point: never with an exponent where that is large."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


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
