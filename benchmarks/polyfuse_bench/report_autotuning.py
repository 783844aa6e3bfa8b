"""The table of docs/autotuning.md: what autotuning costs and gains, as far as it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyfuse_bench.autotune_backends import gain
from polyfuse_bench.backends import POLYFUSE
from polyfuse_bench.report_summary import Group
from polyfuse_bench.report_text import markdown, slug, time_text
from polyfuse_bench.results import read_results
from polyfuse_bench.timing import geometric_mean
from polyfuse_bench.tuning import seconds_of_choice

GAINS = (
    ("Linear layers", "linear layers, CPU with two cores, over eager mode's library calls"),
    ("GEMM, bfloat16 on NVIDIA H200", "matrix multiplication, bf16, H200, over the library"),
    ("GEMM, float16 on NVIDIA H200", "matrix multiplication, f16, H200, over the library"),
)
"""Sections of docs/performance.md in which candidates were chosen by timing."""

BACKENDS = (
    ("autotune_backends", "Autotuning across backends", "kernels that several backends generate, CPU"),
    (
        "autotune_backends-cuda",
        "Autotuning across backends on NVIDIA H200",
        "kernels that several backends generate, H200",
    ),
)


def autotuning_table(found: Sequence[Group], results: Path) -> str | None:
    """Rows of what was measured; None where nothing was."""
    table: list[list[str]] = []
    content = read_results("tuning", results)
    for row in content["rows"] if content else ():
        for start in ("cold", "warm"):
            seconds = seconds_of_choice(row[start], POLYFUSE)
            if seconds is not None:
                words = f"added to the first call of a {start} start: {row['name']}"
                cost = time_text(seconds) if seconds else "0 s"
                table.append([f"[{words}](performance.md#tuning-time)", cost])
    for section, words in GAINS:
        group = next((group for group in found if group.section == section), None)
        mean = group.mean("over_eager") if group else None
        if mean:
            table.append([f"gain: [{words}](performance.md#{slug(section)})", f"{mean:.2f}×"])
    for name, section, words in BACKENDS:
        content = read_results(name, results)
        gains = [gain(race) for row in content["rows"] for race in row["trials"]] if content else []
        mean = geometric_mean(gains)
        if mean:
            link = f"performance.md#{slug(section)}"
            table.append([f"gain: [{words}]({link}), over the backend asked first", f"{mean:.2f}×"])
    return "\n".join(markdown(["measured", "cost or gain"], table)) + "\n" if table else None
