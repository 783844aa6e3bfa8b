"""Starts the processes of a distributed program, forked from one that has imported torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import preforked
from polyfuse.base.settings import child_environment, environment

TESTS = Path(__file__).parents[1]

SECONDS = 240
"""After which processes are taken to hang."""


def run_ranks(
    module: str, count: int, folder: Path, *arguments: str, **changes: str
) -> list[subprocess.CompletedProcess[str]]:
    """Call `main(rank, count, meeting, *arguments)` of a module of the tests in each of `count` processes.

    Args:
        folder: new and empty; the caches lie in it too, unless `changes` names other ones.
        changes: of the environment.
    """
    script = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        f"from {module} import main\n"
        "main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])\n"
    )
    paths = f"{TESTS}:{environment('PYTHONPATH')}"
    given = {"OMP_NUM_THREADS": "1", "POLYFUSE_CACHE_DIR": str(folder / "cache")} | changes
    children = [
        preforked.start(
            script,
            str(rank),
            str(count),
            str(folder / "meeting"),
            *arguments,
            environment=child_environment(PYTHONPATH=paths, **given),
        )
        for rank in range(count)
    ]
    outputs: list[tuple[str, str]] = []
    try:
        for child in children:
            outputs.append(child.communicate(SECONDS))
    finally:
        for child in children:
            child.kill()
    return [
        subprocess.CompletedProcess([module], child.returncode or 0, *output)
        for child, output in zip(children, outputs, strict=True)
    ]
