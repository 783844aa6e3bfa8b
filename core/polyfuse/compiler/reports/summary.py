"""The report of a compiled graph: its schedule as text, and tables as CSV files that grow by a few lines with
each graph (`metric_tables`).

graphs.csv   counts, bytes and seconds of each graph
kernels.csv  each launch of a generated kernel
trials.csv   what autotuning decided: configurations, choices for calls, fusions that were timed
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from polyfuse.base.log import warn_once
from polyfuse.compiler.built import Built
from polyfuse.compiler.reports.clock import Clock
from polyfuse.compiler.reports.report import GraphReport, LaunchReport
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.nodes import Origin
from polyfuse.ir.records import changed
from polyfuse.ir.text.print import text
from polyfuse.lowering import LoweringReport
from polyfuse.program.traffic import steps_traffic
from polyfuse.runtime.frozen import FROZEN
from polyfuse.schedule import Call, Launch, Schedule


def count_operators(aten: AtenGraph) -> int:
    """How many operators a traced graph calls."""
    return sum(1 for n in aten.module.graph.nodes if n.op == "call_function")


def graph_report(aten: AtenGraph, lowering: LoweringReport, built: Built, clock: Clock) -> GraphReport:
    """What became of a graph, and how long that took."""
    few, steps = built.layers.few, list(built.layers.steps())
    moved = steps_traffic(few)
    launches = tuple(_launches(built, steps, [after for _, after in moved]))
    packed = built.module.packed_inputs
    once = () if packed is None else tuple(f"{FROZEN}{step.op}" for step in packed.steps)
    called = [step.node.op if isinstance(step, Call) else "" for step in few.steps]
    calls = tuple([called[at] for at, _ in steps if called[at]])
    return GraphReport(
        aten.name,
        aten.kind,
        count_operators(aten),
        len(launches),
        len(built.kernels),
        len(calls),
        tuple((f.op, f.reason) for f in lowering.fallbacks),
        sum(moved[at][0] for at, _ in steps),
        sum(moved[at][1] for at, _ in steps),
        clock.total(),
        tuple(clock.seconds.items()),
        built.layers.decisions,
        launches,
        (*once, *calls),
        aten.rewrites,
        recording=built.module.graph_status,
        host=built.host,
        sizes=None if built.module.sized is None else built.module.sized.status,
    )


def _launches(built: Built, steps: Iterable[tuple[int, int]], moved: Sequence[int]) -> Iterator[LaunchReport]:
    """The launches among the steps of all layers, with the bytes that each moves."""
    few, expansion = built.layers.few.steps, built.layers.expansion
    names = {(item.launch.backend, item.launch.kernel): name for name, item in built.kernels.items()}
    known: dict[int, tuple[LaunchReport, list[Origin]]] = {}
    for at, copy in steps:
        launch = few[at]
        if not isinstance(launch, Launch):
            continue
        if at not in known:
            origins = list({o: None for node in launch.nodes for o in node.origins})
            name = names[launch.backend, launch.kernel]
            known[at] = _launch_report(launch, origins, moved[at], built, name), origins
        report, origins = known[at]
        if copy and expansion is not None:
            nodes = expansion.later_names(report.nodes, copy)
            report = changed(report, nodes=nodes, sources=expansion.later_sources(origins, copy))
        yield report


def _launch_report(
    launch: Launch, origins: Iterable[Origin], moved: int, built: Built, name: str
) -> LaunchReport:
    key = launch.backend, launch.kernel
    return LaunchReport(
        launch.kernel.name,
        built.providers[key],
        tuple(node.name for node in launch.nodes),
        tuple(dict.fromkeys(o.op for o in origins)),
        tuple(dict.fromkeys(o.source for o in origins if o.source)),
        moved,
        built.notes.get(key, ""),
        name,
    )


def schedule_text(schedule: Schedule) -> str:
    """The decisions and steps of a schedule, with the kernels."""
    lines = [f"{d.kind}: {d.first} {d.second}: {d.reason}" for d in schedule.decisions]
    for step in schedule.steps:
        if isinstance(step, Launch):
            lines.append(f"launch {step.kernel.name}({', '.join(map(str, step.operands))}) by {step.backend}")
            lines.append(text(step.kernel).rstrip())
        else:
            lines.append(f"call {step.node.op} -> {', '.join(step.writes)}")
    return "\n".join(lines)


TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "graphs": (
        *("process", "graph", "kind", "operators", "launches", "kernels", "library_calls", "fallbacks"),
        *("fused", "refused", "bytes_before", "bytes_after", "seconds"),
    ),
    "kernels": ("process", "graph", "launch", "kernel", "backend", "bytes", "operators"),
    "trials": ("process", "graph", "subject", "chosen", "reason"),
}
"""The columns of each table."""

_TUNED: Final = ("choice", "tune")


def append_tables(folder: Path, report: GraphReport) -> None:
    """Add one graph. A folder that cannot be written costs the tables, with one warning."""
    kinds = [decision.kind for decision in report.decisions]
    row = (
        *(report.name, report.kind, report.aten_ops, report.kernels, report.distinct_kernels),
        *(report.extern_calls, len(report.fallbacks), kinds.count("fuse"), kinds.count("refuse")),
        *(report.bytes_before, report.bytes_after, f"{report.compile_seconds:.6f}"),
    )
    launches = (
        (report.name, number, item.name, item.backend, item.nbytes, " ".join(item.ops))
        for number, item in enumerate(report.launches)
    )
    trials = ((report.name, d.first, d.second, d.reason) for d in report.decisions if d.kind in _TUNED)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("graphs", [row]), ("kernels", launches), ("trials", trials)):
            _append(folder / f"{name}.csv", TABLES[name], rows)
    except OSError as error:
        warn_once("compiler", f"no tables are written ({error}); name another folder with `metric_tables`")


def _append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # one write at the end of the file: lines of several processes do not mix
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        if not os.fstat(descriptor).st_size:
            writer.writerow(columns)
        writer.writerows((os.getpid(), *row) for row in rows)
        os.write(descriptor, text.getvalue().encode())
    finally:
        os.close(descriptor)
