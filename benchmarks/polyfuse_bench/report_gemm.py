"""Matmuls on the page: beside the peers, beside what the device multiplies; tilings compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyfuse_bench.backends import CUTLASS, EAGER, POLYFUSE
from polyfuse_bench.report_text import facts, in_order, markdown, on_device, sizes, time_text, timing_table
from polyfuse_bench.timing import geometric_mean

Row = dict[str, Any]


def gemm_section(content: dict[str, Any]) -> list[str]:
    more = any(name.endswith(f"+{CUTLASS}") for name in content.get("backends", ()))
    which = ", with CUTLASS among Inductor's choices" if more else ""
    lines = [
        f"## GEMM{which}{sizes(content)}{on_device(content)}",
        "",
        "Rows by depth by columns, and what follows; the device's time alone. Both compilers choose by",
        "timing. *over the best*: beside the faster of the others.",
        "",
        *facts(content),
    ]
    if content.get("ahead"):
        lines += [
            f"Beforehand, up to {content['ahead']} processes side by side compiled and chose, caches empty.",
            "Then, with nothing beside it, each row was timed in interleaved rounds, one after the other.",
            "",
        ]
    for dtype in in_order(row["dtype"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["dtype"] == dtype]
        table = [
            *timing_table(rows, "matmul", lambda row: row["name"], best=True),
            *_peers_choices(rows),
        ]
        rate = content.get("matrix_rates", {}).get(dtype)
        lines += [f"### {dtype}", "", *table, "", *(_rate_table(rows, rate) if rate else ())]
    return lines


def tilings_section(content: dict[str, Any]) -> list[str]:
    """What the short list of tilings loses beside all of them."""
    rows = [row for row in content["rows"] if row.get("best")]
    table = [
        [
            row["name"],
            str(row["tilings"]),
            *(time_text(row[key]) for key in ("best", "offered", "first")),
            *(f"{row[key] / row['best']:.3f}" for key in ("offered", "first")),
        ]
        for row in rows
    ]
    if rows:
        means = (geometric_mean([row[key] / row["best"] for row in rows]) for key in ("offered", "first"))
        table.append(["**geometric mean**", "", "", "", "", *(f"**{mean:.4f}**" for mean in means)])
    header = [
        "matmul",
        "tilings",
        "fastest of all",
        "of the short list",
        "first guess",
        "list loses",
        "guess loses",
    ]
    return [
        f"## Tilings of matmuls{sizes(content)}{on_device(content)}",
        "",
        "All tilings of our Hopper kernel that are thought of, built and timed, beside the fastest of the",
        "short list that autotuning builds, and the one that is used without it. The last two columns:",
        "their times as multiples of that of the fastest of all.",
        "",
        *facts(content),
        *markdown(header, table),
        "",
    ]


def _peers_choices(rows: Sequence[Row]) -> list[str]:
    """How often Inductor chose what, where it was noted."""
    chosen = Counter(row["peer_chosen"] for row in rows if row.get("peer_chosen"))
    found = ", ".join(f"{name} {count}" for name, count in chosen.most_common())
    return ["", f"Who computes the matmul in Inductor's code, by rows: {found}."] if found else []


def _rate_table(rows: Sequence[Row], rate: float) -> list[str]:
    """Long plain matmuls beside what the matrix units do alone."""
    table = []
    for row in rows:
        medians = {timing["name"].partition(":")[0]: timing["median"] for timing in row["timings"]}
        if POLYFUSE not in medians or EAGER not in medians or row["flop"] / rate < _LONG_GEMM:
            continue
        rates = [row["flop"] / medians[name] for name in (EAGER, POLYFUSE)]
        table.append([row["name"], *(f"{one / 1e12:.0f}" for one in rates), f"{rates[1] / rate:.0%}"])
    if not table:
        return []
    return [
        f"Multiplying what lies in shared memory already reaches {rate / 1e12:.0f} TFLOP/s; beside that:",
        "",
        *markdown(["matmul", "eager, TFLOP/s", "Polyfuse, TFLOP/s", "of the rate"], table),
        "",
    ]


_LONG_GEMM = 5e-4
"""Seconds that a matmul takes at least to show a device's sustained rate."""
