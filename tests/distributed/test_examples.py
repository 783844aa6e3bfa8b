"""The scripts of examples/distributed, which compare themselves with one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore

import preforked
from polyfuse.base.settings import child_environment
from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)

FOLDER = Path(__file__).parents[2] / "examples" / "distributed"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "common.py")
SECONDS = 900


def run(name: str, ranks: int, tmp_path: Path, **changes: str) -> None:
    """Run a script, which fails where it is not equal to one process."""
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    environment = child_environment(
        OMP_NUM_THREADS="1",
        POLYFUSE_CACHE_DIR=str(tmp_path),
        POLYFUSE_STRICT="1",
        POLYFUSE_BACKENDS="interpreter",
        **changes,
    )
    done = subprocess.run(
        [*command, str(FOLDER / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "equal to one process" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_equals_one_process(name: str, tmp_path: Path) -> None:
    run(name, 4, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", (2, 4))
def test_matmuls_in_chunks_equal_one_process(ranks: int, tmp_path: Path) -> None:
    run("tensor_parallel.py", ranks, tmp_path, POLYFUSE_CHUNK_COLLECTIVES="2")


def start(script: str, rank: int, port: int, folder: Path) -> preforked.Started:
    """One of two ranks, as torchrun would start it."""
    environment = child_environment(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        OMP_NUM_THREADS="1",
        POLYFUSE_CACHE_DIR=str(folder),
        POLYFUSE_STRICT="1",
        POLYFUSE_BACKENDS="interpreter",
    )
    return preforked.start(script, environment=environment)


@pytest.fixture
def port() -> Iterator[int]:
    """Where the ranks meet, which is open before they start: nobody else can take it meanwhile."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def test_stages_of_a_pipeline_equal_one_process(tmp_path: Path, port: int) -> None:
    script = f"import sys, runpy; sys.path.insert(0, {str(FOLDER)!r})\n"
    script += f"runpy.run_path({str(FOLDER / 'pipeline.py')!r}, run_name='__main__')"
    ranks = [start(script, rank, port, tmp_path) for rank in range(2)]
    outputs = [rank.communicate(SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "equal to one process" in outputs[0][0]


DYING = """
import os, sys
sys.path.insert(0, {folder!r})
import torch.distributed as dist
from common import begin, compiled, data, network, share
from torch.nn.parallel import DistributedDataParallel
rank, world, device = begin()
wrapped = DistributedDataParallel(network(1))
run = compiled(wrapped)
for step in range(2):
    if step and rank:
        os._exit(3)
    run(share(data(step, 4), rank, world)).sum().backward()
"""


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others(tmp_path: Path, port: int) -> None:
    ranks = [start(DYING.format(folder=str(FOLDER)), rank, port, tmp_path) for rank in range(2)]
    outputs = [rank.communicate(SECONDS) for rank in ranks]
    assert ranks[1].returncode == 3
    assert ranks[0].returncode not in (0, None), outputs
    assert "onnection" in outputs[0][1]
