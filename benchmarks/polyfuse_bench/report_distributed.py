"""The sections of docs/performance.md on programs of several processes."""

from __future__ import annotations

import statistics
from typing import Any

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE
from polyfuse_bench.report_text import in_order, markdown

__all__ = ["two_devices_section"]


def two_devices_section(content: dict[str, Any]) -> list[str]:
    """Times of each side, exposed communication, and peak memory."""
    table = []
    for case in in_order(row["case"] for row in content["rows"]):
        rows = {row["side"]: row for row in content["rows"] if row["case"] == case and row["milliseconds"]}
        times = {side: statistics.median(row["milliseconds"]) for side, row in rows.items()}
        ours = rows.get(POLYFUSE)
        if ours is None or INDUCTOR not in rows:
            continue
        whole = times.get(f"{POLYFUSE} whole")
        shown = [f"{times[side]:.3g} ms" if side in times else "" for side in (EAGER, INDUCTOR, POLYFUSE)]
        shown.append("" if whole is None else f"{whole:.3g} ms")
        open_ = " / ".join(f"{rows[side]['exposed_ms']:.3g} ms" for side in (INDUCTOR, POLYFUSE))
        peak = ours["peak_bytes"] / rows[EAGER]["peak_bytes"] if EAGER in rows else 1.0
        table.append([case, *shown, f"{times[INDUCTOR] / times[POLYFUSE]:.2f}×", open_, f"{peak:.2f}"])
    head = ["case", "eager", "Inductor", "Polyfuse", "in one piece", "over Inductor"]
    head += ["exposed communication", "peak memory"]
    if not any(row[4] for row in table):
        head.remove("in one piece")
        table = [[*row[:4], *row[5:]] for row in table]
    return [
        f"## {content['ranks']} processes on {content['ranks']} devices, {content['device']}",
        "",
        "Tensor-parallel Llama blocks of the 8B shape, decoding with them (with device graphs), and FSDP2",
        "training of a 1B shape, in bf16. *exposed communication*: of a call by Inductor and by Polyfuse,",
        "where no other kernel runs; *peak memory*: as a share of eager mode's; *in one piece*: by Polyfuse,",
        "without matmuls in pieces beside collectives (`chunk_collectives`).",
        "",
        f"Measured {content['taken']}, torch {content['torch']}. To repeat it: `PYTHONPATH=benchmarks",
        f"torchrun --standalone --nproc-per-node {content['ranks']} -m polyfuse_bench.two_devices`.",
        "",
        *markdown(head, table),
        "",
    ]
