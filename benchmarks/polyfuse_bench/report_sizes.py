"""The sections of docs/performance.md on graphs for any size, and on networks of many equal layers."""

from __future__ import annotations

import statistics
from typing import Any

from polyfuse_bench.any_size import ratio, worst
from polyfuse_bench.layers import FEW, median
from polyfuse_bench.report_text import facts, markdown, on_device, time_text, title

__all__ = ["any_size_line", "any_size_section", "layers_line", "layers_section"]

_SHOWN = 3
"""How many of the worst sizes a row names."""
_LIMIT = 1.1


def any_size_line(row: dict[str, Any]) -> list[str]:
    """What a row says while it is measured."""
    return [f"{row['graphs']} graphs", f"over static {_worst(row, 'static')}"]


def any_size_section(content: dict[str, Any]) -> list[str]:
    """How long calls of one graph take beside static compilations and beside eager mode."""
    table = []
    for row in content["rows"]:
        calls = row["calls"].values()
        ratios = [ratio(call) for call in calls]
        table.append(
            [
                *(row["name"], row["mode"], str(row["graphs"]), str(len(ratios))),
                *(f"{statistics.median(ratios):.2f}", str(sum(found > _LIMIT for found in ratios))),
                *(_worst(row, "static"), f"{statistics.median(ratio(c, 'eager') for c in calls):.2f}"),
                *(_worst(row, "eager"), f"{max(call['error'] for call in calls):.0e}"),
            ]
        )
    head = ["network", "mode", "graphs", "sizes", "over static", f"above {_LIMIT}", "worst", "over eager"]
    return [
        f"## One function for any size{on_device(content)}",
        "",
        "Thirty sizes from 1 to 8192 of one dimension that varies (rows of an MLP, images of a convolution",
        "network, tokens of a Llama block), all by one compiled function, met first with 8. *over static*:",
        "its time as a multiple of that of a compilation for the one size, on the median over sizes; *over",
        "eager*: of eager mode's. *worst*: the largest ones, with their sizes. Least CPU time of interleaved",
        "calls, one thread. *error*: the largest difference from eager mode, as a part of the norm.",
        "",
        *facts(content),
        *markdown([*head, "worst over eager", "error"], table),
        "",
    ]


def _worst(row: dict[str, Any], over: str) -> str:
    found = list(worst(row["calls"], over))[:_SHOWN]
    return ", ".join(f"{value:.2f} at {size}" for size, value in found)


def layers_line(row: dict[str, Any]) -> list[str]:
    """What a row says while it is measured."""
    return [
        f"{title(name)} " + ", ".join(f"{count}: {median(row, name, int(count)):.2f} s" for count in counts)
        for name, counts in row["seconds"].items()
    ]


def layers_section(content: dict[str, Any]) -> list[str]:
    """Seconds to compile networks of few and of many layers."""
    counts = sorted({int(n) for row in content["rows"] for found in row["seconds"].values() for n in found})
    many = [count for count in counts if count != FEW]
    table = []
    for row in content["rows"]:
        for name in row["seconds"]:
            found = {count: median(row, name, count) for count in counts}
            few = found.get(FEW)
            cells = ["" if seconds is None else time_text(seconds) for seconds in found.values()]
            for count in many:
                seconds = found[count]
                cells.append(f"{seconds / few:.2f}" if few and seconds is not None else "")
            table.append([row["name"], row["mode"], _BY.get(name, title(name)), *cells])
    head = [f"{count} layers" for count in counts] + [f"{count} over {FEW}" for count in many]
    return [
        f"## Networks of many equal layers{on_device(content)}",
        "",
        "CPU time of the first call (*train*: with its backward) in a fresh process with empty caches, of",
        "the process and all compilers that it starts, one thread, medians; modules are imported before.",
        "*Dynamo alone*, and *Dynamo and AOTAutograd*, are what torch takes by itself.",
        "",
        *facts(content),
        *markdown(["network", "mode", "by", *head], table),
        "",
    ]


_BY = {"aot_eager": "Dynamo and AOTAutograd"}
