"""The sections of docs/performance.md on programs of several processes."""

from __future__ import annotations

import statistics
from typing import Any

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE
from polyfuse_bench.report_text import facts, in_order, markdown

__all__ = ["parallel_training_section", "two_devices_section"]


def two_devices_section(content: dict[str, Any]) -> list[str]:
    """Times of each side, exposed communication, and peak memory."""
    table = []
    for case in in_order(row["case"] for row in content["rows"]):
        rows = {row["side"]: row for row in content["rows"] if row["case"] == case and row["milliseconds"]}
        times = {side: statistics.median(row["milliseconds"]) for side, row in rows.items()}
        ours = rows.get(POLYFUSE)
        if ours is None or INDUCTOR not in rows:
            continue
        whole, mapped = (times.get(f"{POLYFUSE} {how}") for how in ("whole", "symmetric"))
        shown = [f"{times[side]:.3g} ms" if side in times else "" for side in (EAGER, INDUCTOR, POLYFUSE)]
        shown += ["" if time is None else f"{time:.3g} ms" for time in (whole, mapped)]
        open_ = " / ".join(f"{rows[side]['exposed_ms']:.3g} ms" for side in (INDUCTOR, POLYFUSE))
        peak = ours["peak_bytes"] / rows[EAGER]["peak_bytes"] if EAGER in rows else 1.0
        day = ours.get("taken", content["taken"])
        name = case if day == content["taken"] else f"{case} ({day})"
        table.append([name, *shown, f"{times[INDUCTOR] / times[POLYFUSE]:.2f}×", open_, f"{peak:.2f}"])
    head = ["case", "eager", "Inductor", "Polyfuse", "whole", "symmetric", "over Inductor"]
    head += ["exposed communication", "peak memory"]
    for name in ("whole", "symmetric"):
        column = head.index(name)
        if not any(row[column] for row in table):
            head.remove(name)
            table = [[*row[:column], *row[column + 1 :]] for row in table]
    return [
        f"## {content['ranks']} processes on {content['ranks']} devices, {content['device']}",
        "",
        "Tensor-parallel Llama blocks of the 8B shape, decoding with them (with device graphs), and FSDP2",
        "training of a 1B shape, in bf16. *exposed communication*: of a call by Inductor and by Polyfuse,",
        "where no other kernel runs; *peak memory*: as a share of eager mode's; *whole*: by Polyfuse,",
        "without matmuls in chunks beside collectives (`chunk_collectives`); *symmetric*: by Polyfuse,",
        "through torch's symmetric memory, where no collective is left between two ranks. A day behind a",
        "case is another than that of the others.",
        "",
        f"Measured {content['taken']}, torch {content['torch']}. To repeat it: `PYTHONPATH=benchmarks",
        f"torchrun --standalone --nproc-per-node {content['ranks']} -m polyfuse_bench.two_devices`.",
        "",
        *markdown(head, table),
        "",
    ]


def parallel_training_section(content: dict[str, Any]) -> list[str]:
    """CPU time and duration of a training step of each way to spread a model over processes."""
    table = []
    for case in in_order(row["case"] for row in content["rows"]):
        rows = {row["side"]: row for row in content["rows"] if row["case"] == case}
        used = {s: statistics.median(row["cpu_ms"]) for s, row in rows.items() if row["cpu_ms"]}
        lasted = {s: statistics.median(row["milliseconds"]) for s, row in rows.items() if row["cpu_ms"]}
        if POLYFUSE not in used:
            continue
        cells = [f"{used[s]:.3g} ms" if s in used else "none" for s in (EAGER, INDUCTOR, POLYFUSE)]
        ratios = [
            f"{found[INDUCTOR] / found[POLYFUSE]:.2f}×" if INDUCTOR in found else ""
            for found in (used, lasted)
        ]
        table.append([case, *cells, *ratios])
    errors = [f"{row['case']} by {row['side']}: {row['error']}." for row in content["rows"] if row["error"]]
    loads = ", ".join(f"{load:.1f}" for load in content["machine"]["loads"])
    return [
        f"## A training step in {content['ranks']} processes on one CPU",
        "",
        "Forward, backward and SGD of small transformer blocks (expert parallel: one of experts), over Gloo,",
        "f32 unless said otherwise. CPU time of all processes in a step: medians of rounds that alternate in",
        f"the same processes. Other programs ran on the machine (loads {loads}), so that *duration over",
        "Inductor*, of the slowest process, says little. Losses of three steps are equal to eager mode's",
        "within 1e-5 of their norm (bfloat16: 2e-2).",
        *filter(None, (content.get("note"),)),
        *errors,
        "",
        *facts(content),
        f"To repeat it: `OMP_NUM_THREADS=1 PYTHONPATH=benchmarks torchrun --standalone --nproc-per-node"
        f" {content['ranks']} -m polyfuse_bench.parallel_training`; `--only pipeline` measures one kind.",
        "",
        *markdown(
            ["kind", "eager", "Inductor", "Polyfuse", "CPU time over Inductor", "duration over Inductor"],
            table,
        ),
        "",
    ]
