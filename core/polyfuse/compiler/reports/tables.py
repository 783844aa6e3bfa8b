"""Tables of what was compiled, as CSV files that grow by a few lines with each graph (`metric_tables`).

graphs.csv   counts, bytes and seconds of each graph
kernels.csv  each launch of a generated kernel
trials.csv   what autotuning decided: configurations, choices for calls, fusions that were timed
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from polyfuse.base.log import warn_once
from polyfuse.compiler.reports.report import GraphReport

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
