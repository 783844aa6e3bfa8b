"""How pages of results write tables, times and names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from polyfuse_bench.backends import (
    DEFAULT_BACKENDS,
    DYNAMO,
    EAGER,
    INDUCTOR,
    ONNXRUNTIME,
    OPENVINO,
    POLYFUSE,
    SDPA,
)
from polyfuse_bench.devices import CPU
from polyfuse_bench.machine import Machine
from polyfuse_bench.timing import geometric_mean

TITLES = {
    EAGER: "eager",
    SDPA: "SDPA",
    DYNAMO: "Dynamo alone",
    INDUCTOR: "Inductor",
    OPENVINO: "OpenVINO",
    ONNXRUNTIME: "ONNX Runtime",
    POLYFUSE: "Polyfuse",
}
"""Names in tables, in the order of columns."""


def on_device(content: dict[str, Any]) -> str:
    """The device in a heading; nothing for the CPU."""
    return f" on {content['device_name']}" if content.get("device_name") else ""


def other_threads(content: dict[str, Any]) -> str:
    """How many threads the CPU's work was shared by, in a heading, where not two as in the other tables."""
    threads = content.get("machine", {}).get("threads", _USUAL_THREADS)
    if threads == _USUAL_THREADS or content.get("device", CPU) != CPU:
        return ""
    return ", one thread" if threads == 1 else f", {threads} threads"


_USUAL_THREADS = 2

_BY_THEMSELVES = ("opdb", "architectures", "fuzz", "parallel_training")
"""Campaigns whose pages say by themselves how they are run."""


def facts(content: dict[str, Any]) -> list[str]:
    """When and on what machine results were taken, and how to repeat one of them."""
    known = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content["machine"].items()
    }
    lines = [f"Measured {content['taken'][:10]} on {Machine(**known).summary()}."]
    row = next((row for row in content["rows"] if not row.get("failures")), None)
    if content.get("kind", "opdb").partition("-")[0] not in _BY_THEMSELVES and row is not None:
        lines.append(f"To repeat a row: `{_command(content, row)}`.")
    return [*lines, ""]


def _command(content: dict[str, Any], row: dict[str, Any]) -> str:
    """The command that measures a row of a result file."""
    words = ["python", "-m", "polyfuse_bench", content["kind"].partition("-")[0]]
    backends = tuple(content.get("backends", ()))
    if backends and backends != DEFAULT_BACKENDS:
        words += ["--backends", ",".join(backends)]
    if content.get("device", "cpu") != "cpu":
        words += ["--device", content["device"]]
    if row.get("dtype", "float32") != "float32":
        words += ["--dtype", row["dtype"]]
    if row.get("batch"):
        words += ["--batch", str(row["batch"])]
    if row.get("threads"):
        words = [f"OMP_NUM_THREADS={row['threads']}", *words]
    if row.get("mode"):
        words += ["--modes", row["mode"]]
    if row.get("size") == "tiny":
        words.append("--tiny")
    elif row.get("size") not in (None, "real"):
        words += ["--sizes", row["size"]]
    return "PYTHONPATH=benchmarks " + shlex.join([*words, "--only", row["name"]])


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def by_backend(names: Iterable[str]) -> list[str]:
    """The distinct candidates, eager mode first, Polyfuse last: the order of columns in all tables."""
    order = tuple(TITLES)
    return sorted(in_order(names), key=lambda name: order.index(re.split("[:@]", name)[0]))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], others: str = "--:") -> list[str]:
    """A table whose first column is aligned left and whose `others` by default are aligned right."""
    rule = [":--", *(others for _ in header[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown(header, rows, ":--") if rows else ["None."]


def in_order(values: Iterable[str]) -> list[str]:
    """The distinct values in the order they first appear."""
    return list(dict.fromkeys(values))


def title(name: str) -> str:
    backend, _, mode = name.partition(":")
    backend, _, plugin = backend.partition("@")
    return " ".join(filter(None, (TITLES.get(backend, backend), plugin and f"({plugin})", mode)))


def time_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
            )
    raise AssertionError("unreachable: the last unit takes all")


def size_text(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def error_text(error: float | str | None) -> str:
    if error is None:
        return ""
    return f"{float(error):.0e}"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:160]


def sizes(content: dict[str, Any]) -> str:
    """The type and the batch in a heading, where all rows have the same and it is not the usual one."""
    types = {row.get("dtype") or "float32" for row in content["rows"]}
    batches = {row.get("batch") for row in content["rows"]}
    found = f", {types.pop()}" if len(types) == 1 and types != {"float32"} else ""
    return found + (f", batch {batches.pop()}" if len(batches) == 1 and batches != {None} else "")


def _missing(row: dict[str, Any], name: str) -> str:
    """What stands in place of a time: not every candidate does every row."""
    return "failed" if name in row.get("failures", {}) else ""


def timing_table(
    rows: Sequence[dict[str, Any]], what: str, label: Callable[[dict[str, Any]], str], *, best: bool = False
) -> list[str]:
    """Medians, the ratios to eager and Inductor (and to the `best` of them), and their geometric means in
    the last row.
    """
    names = by_backend(timing["name"] for row in rows for timing in row["timings"])
    mine = next((name for name in names if name.partition(":")[0] == POLYFUSE), None)
    # of several plugins, the one that was named last is looked at
    mine = mine or next((name for name in reversed(names) if name.startswith(f"{POLYFUSE}@")), None)
    compared = [name for name in names if name != mine] if mine else []
    header = [
        what,
        *(title(name) for name in names),
        *(f"over {title(name)}" for name in compared),
        *(("over the best",) if best else ()),
        "error",
    ]
    ratios: dict[str, list[float]] = {name: [] for name in compared}
    bests: list[float] = []
    table = []
    for row in rows:
        medians = {timing["name"]: timing["median"] for timing in row["timings"]}
        cells = [
            label(row),
            *(time_text(medians[name]) if name in medians else _missing(row, name) for name in names),
        ]
        for name in compared:
            if name in medians and mine in medians:
                ratios[name].append(medians[name] / medians[mine])
                cells.append(f"{ratios[name][-1]:.2f}×")
            else:
                cells.append("")
        if best:
            others = [medians[name] for name in compared if name in medians]
            cells.append(f"{min(others) / medians[mine]:.2f}×" if others and mine in medians else "")
            if cells[-1]:
                bests.append(min(others) / medians[mine])
        error = row["errors"].get(mine or (names[-1] if names else ""))
        own = row.get("own_error")
        table.append([*cells, error_text(error) + (f" ({error_text(own)})" if own is not None else "")])
    columns = [*(ratios[name] for name in compared), *([bests] if best else [])]
    means = [f"**{mean:.2f}×**" if (mean := geometric_mean(column)) else "" for column in columns]
    return markdown(header, [*table, ["**geometric mean**", *([""] * len(names)), *means, ""]])
