"""The section of docs/performance.md on several callers at once."""

from __future__ import annotations

from typing import Any

from polyfuse_bench.backends import POLYFUSE
from polyfuse_bench.callers import rate
from polyfuse_bench.report_text import facts, markdown, title

__all__ = ["callers_line", "callers_section"]


def callers_section(content: dict[str, Any]) -> list[str]:
    """Calls a second by network, candidate and number of callers."""
    counts = [str(count) for count in content["callers"]]
    table = []
    for row in content["rows"]:
        for name, rates in row["rates"].items():
            found = {count: rate(rates[count]) for count in counts}
            most = max(found.values())
            gain = f"{found[counts[1]] / found[counts[0]]:.2f}×" if len(counts) > 1 else ""
            table.append(
                [
                    row["name"],
                    title(name),
                    *(_number(v) for v in found.values()),
                    gain,
                    _best(row, name, most),
                ]
            )
    engines = content.get("engines", {})
    with_versions = f" ({', '.join(f'{k} {v}' for k, v in engines.items())})" if engines else ""
    return [
        "## Several callers at once",
        "",
        "Calls a second of one model with batch 1, by 1 to 8 threads of one process that call without pause;",
        "torch, ONNX Runtime and Polyfuse compute with one thread a caller, OpenVINO in its mode for",
        f"throughput{with_versions}. Medians over interleaved rounds. *two over one*: how the rate of two",
        "callers compares with that of one. *over the best peer*: the highest rate, beside the highest of",
        "any engine but Polyfuse.",
        "",
        *facts(content),
        *markdown(
            ["network", "by", *_heads(counts), "two over one", "over the best peer"],
            table,
        ),
        "",
    ]


def _heads(counts: list[str]) -> list[str]:
    return [f"{count} caller{'s' * (count != '1')}" for count in counts]


def _best(row: dict[str, Any], name: str, most: float) -> str:
    peers = [
        max(map(rate, rates.values()))
        for other, rates in row["rates"].items()
        if not other.startswith(POLYFUSE)
    ]
    return f"{most / max(peers):.2f}×" if peers and name.startswith(POLYFUSE) else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def callers_line(row: dict[str, Any]) -> list[str]:
    """A row in words."""
    return [
        f"{title(name)} {'/'.join(_number(rate(samples)) for samples in rates.values())} calls a second"
        for name, rates in row["rates"].items()
    ]
