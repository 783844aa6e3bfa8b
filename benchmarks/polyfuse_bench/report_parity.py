"""The page of operators: how many of torch's own database agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyfuse_bench.opdb.status import GOOD, SKIP, STATUSES
from polyfuse_bench.report_text import cell, facts, in_order, markdown, on_device, text_table, title
from polyfuse_bench.results import read_results

Row = dict[str, Any]
SWEEPS = (
    *(
        f"{kind}{device}"
        for device in ("", "-cuda")
        for kind in ("opdb", "opdb-dynamic", "opdb-gradients", "opdb-gradients-dynamic")
    ),
    "opdb-halide",
)


def parity_page(results: Path) -> str | None:
    """A section for each sweep that was made: counts, and the operators that fail."""
    sweeps = [content for kind in SWEEPS if (content := read_results(kind, results)) is not None]
    if not sweeps:
        return None
    head = [
        "## Operators",
        "",
        "Every operator of torch's test database, compiled and compared with eager in value, shape and",
        "dtype. `python -m polyfuse_bench opdb` makes the results, `report` this page; never edited by hand.",
        "",
    ]
    sections = [line for content in sweeps for line in _parity_section(content)]
    rows = [row for sweep in sweeps for row in sweep["rows"]]
    excluded = sorted({(row["op"], row["detail"]) for row in rows if row["status"] == SKIP})
    eager = sorted({text for row in rows for text in row["fallbacks"]})
    tail = [
        "### Left out",
        "",
        *text_table(["operator", "reason"], [(f"`{op}`", why) for op, why in excluded]),
        "",
        "### Computed by eager kernels inside compiled graphs",
        "",
        *text_table(["operator", "reason"], [_fallback_cells(text) for text in eager]),
    ]
    return "\n".join([*head, *sections, *tail, ""])


def _fallback_cells(text: str) -> tuple[str, str]:
    """An operator and why it has no kernel, from "operator: reason"."""
    operator, _, reason = text.partition(": ")
    return f"`{operator}`", cell(reason)


def _parity_section(content: dict[str, Any]) -> list[str]:
    rows, settings = content["rows"], content["settings"]
    dtypes = in_order(row["dtype"] for row in rows)
    counts = [
        [status, *(str(sum(r["status"] == status and r["dtype"] == dtype for r in rows)) for dtype in dtypes)]
        for status in STATUSES
        if any(row["status"] == status for row in rows)
    ]
    failing = [
        [f"`{row['op']}`", row["dtype"], row["status"], cell(row["detail"])]
        for row in rows
        if row["status"] not in GOOD
    ]
    what = "Gradients" if settings["gradients"] else "Results"
    plugin = settings["backend"].partition("@")[2]
    sizes = "dynamic" if settings["dynamic"] else "static"
    return [
        f"### {what}, {sizes} sizes{on_device(content)}{f', {plugin} alone' if plugin else ''}",
        "",
        f"{title(settings['backend'])}, the first {settings['samples']} samples of each operator and dtype.",
        *facts(content),
        *markdown(["status", *dtypes], counts),
        "",
        "Operators that differ:",
        "",
        *text_table(["operator", "dtype", "status", "detail"], failing),
        "",
    ]
