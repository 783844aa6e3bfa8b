"""The campaign for training over several processes: its section of the page, and that it runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from polyfuse_bench.parallel_cases import CASES
from polyfuse_bench.report_distributed import parallel_training_section
from polyfuse_bench.results import write_results

import preforked
from polyfuse.base.settings import child_environment, environment
from requirements import GLOO, has_gloo

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
RANKS = 2

SCRIPT = """
import sys
from polyfuse_bench.parallel_training import main
main(["--small", "--rounds", "2", "--steps", "1", "--sides", "eager,polyfuse", *sys.argv[1:]])
"""


def row(case: str, side: str, cpu: list[float], error: str = "") -> dict[str, Any]:
    return {"case": case, "side": side, "cpu_ms": cpu, "milliseconds": cpu, "error": error}


def test_the_section_compares_cpu_time(tmp_path: Path) -> None:
    rows = [
        *(row("DDP", side, [cpu, cpu + 2, cpu + 1]) for side, cpu in (("eager", 49), ("inductor", 29))),
        row("DDP", "polyfuse", [19, 20, 21]),
        row("pipeline", "inductor", [], "RuntimeError: no"),
        row("pipeline", "polyfuse", [5]),
    ]
    path = write_results("parallel_training", rows, path=tmp_path / "rows.json", ranks=4)
    text = "\n".join(parallel_training_section(json.loads(path.read_text())))
    assert "| DDP | 50 ms | 30 ms | 20 ms | 1.50× | 1.50× |" in text
    assert (
        "| pipeline | none | none | 5 ms |  |  |" in text
        and "pipeline by inductor: RuntimeError: no." in text
    )


@pytest.mark.slow
@pytest.mark.skipif(not has_gloo(), reason=GLOO)
def test_every_case_runs_on_two_ranks(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    out = tmp_path / "rows.json"
    ranks = [
        preforked.start(
            SCRIPT,
            *("--out", str(out)),
            environment=child_environment(
                PYTHONPATH=f"{BENCHMARKS}:{environment('PYTHONPATH')}",
                RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
                POLYFUSE_BACKENDS="interpreter",
                POLYFUSE_CACHE_DIR=str(tmp_path / "cache"),
            ),
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate(900) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 2 * len(CASES) and all(r["cpu_ms"] and not r["error"] for r in rows), rows
