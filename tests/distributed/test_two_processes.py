"""Training and collectives in two processes that talk over Gloo, beside eager mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyfuse.base.settings import child_environment
from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)

from distributed.cases import CASES, RANKS

pytestmark = pytest.mark.slow

SECONDS = 400
"""After which the processes are taken to hang."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What was wrong with each case, in each process."""
    folder = tmp_path_factory.mktemp("processes")
    paths = [folder / f"answers{rank}" for rank in range(RANKS)]
    program = Path(__file__).with_name("cases.py")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), str(rank), str(folder / "meeting"), str(path)],
            env=child_environment(OMP_NUM_THREADS="1"),
        )
        for rank, path in enumerate(paths)
    ]
    try:
        ends = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(ends), "a process ended early; its error stream says why"
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager_mode(name: str, answers: list[dict[str, str]]) -> None:
    assert [found[name] for found in answers] == [""] * RANKS
