"""Under `forkserver`, Python's default start method from 3.14 on: processes that compile, build and time
candidates, and workers of a data loader. The server has imported what its processes need.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def context():
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["polyfuse.compiler.stages"])
    return found


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).sum(-1)


def compile_and_time(rows: int, folder: str) -> tuple[list[str], list[str]]:
    """What a process of a pool does: the records of what was timed and of what was built."""
    from polyfuse.compiler.reports.report import last_reports

    options = {"strict": True, "gemm": "fastest", "cache_dir": folder, "build_workers": 1}
    x, w = torch.randn(rows, 64), torch.randn(64, 32)
    found = torch.compile(product, backend="polyfuse", options=options)(x, w)
    torch.testing.assert_close(found, product(x, w), rtol=1e-4, atol=1e-4)
    (report,) = last_reports()
    assert any(decision.kind == "choice" for decision in report.decisions)
    timed = [path.name for path in Path(folder, "timings").glob("*/*.json")]
    built = [path.name for path in Path(folder, "kernels").glob("*/*.json")]
    return timed, built


@pytest.mark.slow
def test_processes_of_a_pool_compile_build_and_time(context, tmp_path):
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        timed, built = pool.submit(compile_and_time, 33, str(tmp_path)).result()
    assert timed and built


class Rows(torch.utils.data.Dataset):
    """Items that a worker makes with a function that it compiles itself."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, position: int) -> torch.Tensor:
        run = torch.compile(product, backend="polyfuse", options={"strict": True})
        return run(torch.full((2, 4), float(position)), torch.ones(4, 3))


@pytest.mark.slow
def test_workers_of_a_loader_compile(context):
    loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context=context)
    expected = torch.tensor([[12.0 * n] * 2 for n in range(4)])
    torch.testing.assert_close(torch.cat(list(loader)), expected)
