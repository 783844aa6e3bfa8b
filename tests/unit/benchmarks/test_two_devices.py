"""The campaign for several devices: what it computes from a profile, and that it runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from polyfuse_bench.two_devices import exposed, least_of_ranks

import preforked
from polyfuse.base.settings import child_environment, environment
from requirements import GLOO, has_gloo

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

SCRIPT = """
import sys
from polyfuse_bench.two_devices import main
main(["--tiny", "--rounds", "2", "--costs", "--sides", "eager,polyfuse whole,polyfuse", *sys.argv[1:]])
"""


def test_communication_beside_other_kernels_is_not_exposed() -> None:
    events = [("ncclKernel", 0.0, 10.0), ("gemm", 2.0, 5.0), ("add", 4.0, 6.0), ("ncclKernel", 20.0, 22.0)]
    assert exposed(events) == [(10.0, 6.0), (2.0, 2.0)]
    assert exposed([("gemm", 0.0, 3.0)]) == []


def test_waiting_for_a_later_rank_is_no_communication() -> None:
    assert least_of_ranks([[(10.0, 6.0), (2.0, 2.0)], [(3.0, 1.0), (9.0, 9.0)]]) == (5.0, 3.0)
    assert least_of_ranks([[(10.0, 6.0)], [(3.0, 1.0), (9.0, 9.0)]]) == (10.0, 6.0)
    assert least_of_ranks([[], []]) == (0.0, 0.0)


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
            *("--limit", "500", "--out", str(out)),
            environment=child_environment(
                PYTHONPATH=f"{BENCHMARKS}:{environment('PYTHONPATH')}",
                RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
                POLYFUSE_BACKENDS="interpreter",
                POLYFUSE_CACHE_DIR=str(tmp_path / "cache"),
            ),
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(500) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 21 and all(row["milliseconds"] and not row["error"] for row in rows), rows
