"""The section of docs/performance.md on the start of a serving process."""

from __future__ import annotations

from typing import Any

from polyfuse_bench.report_text import facts, markdown, on_device, time_text, title
from polyfuse_bench.serving import PARTS, total

__all__ = ["serving_section"]

_FIRST = ("first answer",)
_TITLES = {"package": "Polyfuse, from a package", "polyfuse:captures": "Polyfuse, with `capture_cache`"}


def serving_section(content: dict[str, Any]) -> list[str]:
    """CPU time of each part of a start, and what of it the first answer takes beside Inductor."""
    table = []
    for row in content["rows"]:
        starts = row["starts"]
        for name, samples in starts.items():
            ratio, first = "", ""
            if name not in ("eager", "inductor") and "inductor" in starts:
                first = f"{total(samples, _FIRST) / total(starts['inductor'], _FIRST):.2f}×"
            if name not in ("eager", "inductor") and {"eager", "inductor"} <= set(starts):
                added, theirs = (total(starts[side]) - total(starts["eager"]) for side in (name, "inductor"))
                ratio = f"{added / theirs:.2f}×" if added > 0 else "below eager"
            cells = [time_text(total(samples, (part,))) for part in PARTS]
            whole = time_text(total(samples))
            by = _TITLES.get(name, title(name))
            table.append([f"{row['name']}, {row['size']}", by, *cells, whole, first, ratio, _work(row, name)])
    return [
        f"## Start of a serving process{on_device(content)}",
        "",
        "CPU time from the first instruction of a process to its second answer, with caches that an earlier",
        "process filled: the process and all that it starts, one thread, medians. *model*: `transformers` is",
        "imported, the model built and called once in eager mode; from a package, only that is loaded.",
        "`torch.compile` and the backend that it imports belong to the first answer. *Dynamo alone*: Dynamo",
        "captures the graph, which then runs as it is.",
        "*first, of Inductor's*: the first answer beside Inductor's.",
        "*of Inductor's*: what is added to the whole start in eager mode, beside what Inductor adds. What",
        "Dynamo imports is counted where it is imported first: with Polyfuse, or by `torch.compile`.",
        "*lowered, built*: graphs that Polyfuse lowered and libraries that were built in all these starts.",
        "",
        *facts(content),
        *markdown(
            ["network", "by", *PARTS, "whole", "first, of Inductor's", "of Inductor's", "lowered, built"],
            table,
        ),
        "",
    ]


def _work(row: dict[str, Any], name: str) -> str:
    """What was done again though the caches were filled, where that was counted."""
    done = row.get("work", {}).get(name)
    if done is None or name in ("eager", "dynamo"):
        return ""
    return f"{done['built']} built" if name == "inductor" else f"{done['lowered']}, {done['built']}"
