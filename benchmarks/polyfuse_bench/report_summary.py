"""The top of docs/performance.md, the README's table, and what both are made of: means over result files."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE
from polyfuse_bench.report_text import in_order, markdown, slug, time_text
from polyfuse_bench.timing import geometric_mean

TIMED = ("models", "kernels", "linear", "gemm")
"""The campaigns that time the same call by several backends."""

SLOWER = 0.95
"""Below this ratio a row counts as slower; between this and 1 lies what repeats of a run differ by."""

SHOWN = 15
"""How many of the slowest rows the page lists."""


@dataclass(frozen=True)
class Speed:
    """How fast one row is: the others' median over Polyfuse's, where they were measured."""

    name: str
    seconds: float
    over_eager: float | None
    over_inductor: float | None


@dataclass(frozen=True)
class Group:
    """Rows that were measured alike, under the heading of their table."""

    section: str
    part: str
    rows: tuple[Speed, ...]

    def mean(self, field: str) -> float | None:
        """The geometric mean of `over_eager` or `over_inductor`."""
        return geometric_mean(known(self.rows, field))


def groups(sections: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Group]:
    """The groups of the sections (heading, content of the result file), in their order."""
    found = []
    for section, content in sections:
        key = "mode" if any("mode" in row for row in content["rows"]) else "size"
        for part in in_order(row.get(key) or "" for row in content["rows"]):
            rows = [row for row in content["rows"] if (row.get(key) or "") == part]
            speeds = tuple(speed for row in rows if (speed := _speed(row)) is not None)
            if speeds:
                found.append(Group(section, part, speeds))
    return found


def _speed(row: Mapping[str, Any]) -> Speed | None:
    medians = {timing["name"]: timing["median"] for timing in row["timings"]}

    def first(backend: str) -> float | None:
        return next((s for name, s in medians.items() if re.split("[:@]", name)[0] == backend), None)

    own, eager, inductor = first(POLYFUSE), first(EAGER), first(INDUCTOR)
    if own is None or any(f"{POLYFUSE}@" in name for name in medians):
        return None
    return Speed(row["name"], own, eager and eager / own, inductor and inductor / own)


def known(rows: Sequence[Speed], field: str) -> list[float]:
    return [value for row in rows if (value := getattr(row, field)) is not None]


def summary(found: Sequence[Group]) -> list[str]:
    """The first section of the page: means, and where Polyfuse is slower."""
    table = []
    for group in found:
        slower = sum(value < SLOWER for value in known(group.rows, "over_inductor"))
        cells = [_ratio(group.mean("over_eager")), _ratio(group.mean("over_inductor"))]
        name = ", ".join(filter(None, (f"[{group.section}](#{slug(group.section)})", group.part)))
        table.append([name, str(len(group.rows)), *cells, str(slower)])
    return [
        "## Summary",
        "",
        f"Geometric means of the tables below. *slower*: rows that take more than {1 / SLOWER - 1:.0%}",
        "longer than with Inductor.",
        "",
        *markdown(["measured", "rows", "over eager", "over Inductor", "slower"], table),
        "",
        *_slow(found),
    ]


def _slow(found: Sequence[Group]) -> list[str]:
    """Where Polyfuse loses: beside Inductor, the rows; beside eager mode, the groups."""
    rows = [
        (speed.over_inductor, group, speed)
        for group in found
        for speed in group.rows
        if speed.over_inductor is not None and speed.over_inductor < SLOWER
    ]
    rows.sort(key=lambda item: item[0])
    table = [
        [f"{speed.name}, {group.part}".rstrip(", "), group.section, time_text(speed.seconds), _ratio(ratio)]
        for ratio, group, speed in rows[:SHOWN]
    ]
    below = [
        (group, [speed for speed in group.rows if speed.over_eager is not None and speed.over_eager < SLOWER])
        for group in found
    ]
    worst = [
        [
            ", ".join(filter(None, (group.section, group.part))),
            f"{len(slow)} of {len(group.rows)}",
            time_text(statistics.median(speed.seconds for speed in slow)),
        ]
        for group, slow in below
        if slow
    ]
    lines = ["### Where Polyfuse is slower", ""]
    if table:
        head = f"The {len(table)} slowest of {len(rows)} rows that are slower than with Inductor:"
        if len(rows) <= SHOWN:
            head = "Rows that are slower than with Inductor:"
        lines += [head, "", *markdown(["row", "in", "Polyfuse", "over Inductor"], table), ""]
    if worst:
        lines += [
            "Rows that are slower than eager mode. A compiled call has a fixed cost, for guards and the host",
            "program: a function that eager mode computes in less is not worth compiling.",
            "",
            *markdown(["measured", "slower than eager", "their median time"], worst),
            "",
        ]
    return lines


def _ratio(value: float | None) -> str:
    return f"{value:.2f}×" if value else ""


README_ROWS = (
    ("Models", "forward", "models, inference, f32, CPU with two cores"),
    ("Models", "train", "models, forward and backward, f32, CPU with two cores"),
    ("Kernels", "large", "fused functions, large tensors, CPU with two cores"),
    ("Kernels", "small", "the same on small tensors: the cost of a call"),
    ("Models on NVIDIA H200", "forward", "models, inference, f32, batch 1, H200"),
    ("Models on NVIDIA H200", "train", "models, forward and backward, f32, batch 1, H200"),
    ("Models, bfloat16, batch 16 on NVIDIA H200", "forward", "models, inference, bf16, batch 16, H200"),
    ("Models, batch 16 on NVIDIA H200", "forward", "models, inference, f32, batch 16, H200"),
    ("Kernels, huge on NVIDIA H200", "huge", "fused functions, huge tensors, H200"),
)
"""The groups that the README shows, and what it says of them."""


def readme_table(found: Sequence[Group]) -> str | None:
    """The README's table, of the groups that there are."""
    groups_by_name = {(group.section, group.part): group for group in found}
    table = [
        [words, str(len(group.rows)), _ratio(group.mean("over_eager")), _ratio(group.mean("over_inductor"))]
        for section, part, words in README_ROWS
        if (group := groups_by_name.get((section, part))) is not None
    ]
    header = ["geometric means of the speed-up", "rows", "over eager", "over Inductor"]
    return "\n".join(markdown(header, table)) + "\n" if table else None
