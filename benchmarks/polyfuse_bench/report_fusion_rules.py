"""Fusion rules on the page: each on and off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyfuse_bench.fusion_rules import OFF, ON
from polyfuse_bench.report_text import facts, in_order, markdown, on_device, time_text
from polyfuse_bench.timing import geometric_mean

__all__ = ["fusion_rules_section"]

Row = dict[str, Any]


def fusion_rules_section(content: dict[str, Any]) -> list[str]:
    """What each rule wins where it has something to say."""
    clock = "CPU time of the process" if content["device"] == "cpu" else "time until the device is done"
    lines = [
        f"## Fusion rules{on_device(content)}",
        "",
        f"The same function with a plugin's fusion rule and without it (`disable_fusion_rules`): {clock}.",
        "",
        *facts(content),
    ]
    table: list[list[str]] = []
    for rule in in_order(row["rule"] for row in content["rows"]):
        gains: list[float] = []
        for row in content["rows"]:
            found = {timing["name"]: timing["median"] for timing in row.get("timings", ())}
            if row["rule"] == rule and ON in found and OFF in found:
                gains.append(found[OFF] / found[ON])
                figures = [*map(time_text, (found[OFF], found[ON])), f"{gains[-1]:.2f}×"]
                table.append([f"`{rule}`", row["words"], *figures])
        table += _mean(rule, gains)
    return [*lines, *markdown(["rule", "computes", "without", "with", "gain"], table), ""]


def _mean(rule: str, gains: Sequence[float]) -> list[list[str]]:
    mean = geometric_mean(gains)
    return [[f"**`{rule}`**", "geometric mean", "", "", f"**{mean:.2f}×**"]] if mean else []
