"""`polyfuse bisect`: find the one rewrite or fusion with which a program begins to fail.

The option `fuel` lets only the first so many rewrites and fusions of each graph happen. A program that fails
with all of them and passes with none is run with half of them, and so on, until one is left.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import child_environment

EXAMPLE = """
polyfuse bisect wrong.py           # a program that exits with 0 only if its numbers are right
"""

MOST = 1 << 20
"""More rewrites and fusions than a graph has."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("program", help="a Python program that ends with a status other than 0 when it fails")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    rest.required = False  # argparse would name it among those that are missing


def run(arguments: argparse.Namespace) -> int:
    """Print the guilty decision of every graph it may be in; the status is 0 if one was found, or if there is
    nothing to find because the program passes.
    """
    if not Path(arguments.program).is_file():
        raise PolyfuseError(f"there is no file {arguments.program}", "name a Python program")
    command = [sys.executable, arguments.program, *arguments.arguments]
    with tempfile.TemporaryDirectory(prefix="polyfuse-bisect-") as folder:

        def passes(fuel: int) -> bool:
            here = Path(folder) / str(fuel)
            environment = child_environment(POLYFUSE_FUEL=str(fuel), POLYFUSE_DUMP=str(here))
            done = subprocess.run(command, env=environment, capture_output=True, check=False)
            print(
                f"fuel {fuel}: {'passes' if done.returncode == 0 else f'fails with status {done.returncode}'}"
            )
            return done.returncode == 0

        if not passes(0):
            print("it fails without any rewrite or fusion: look at the lowering, or at the backend")
            return 1
        if passes(MOST):
            print("it passes with all of them: there is nothing to find")
            return 0
        guilty = first_failing(passes, MOST)
        print(f"decision {guilty} is at fault; what it is in each graph:")
        for line in decisions(Path(folder) / str(guilty), guilty):
            print(f"  {line}")
    return 0


def first_failing(passes: Callable[[int], bool], most: int) -> int:
    """The smallest number that does not pass, where 0 does and `most` does not.

    The bounds grow from below first, since a few decisions are much cheaper to try than a million.
    """
    good, bad = 0, 1
    while bad < most and passes(bad):
        good, bad = bad, min(bad * 4, most)
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes(middle):
            good = middle
        else:
            bad = middle
    return bad


def decisions(folder: Path, number: int) -> list[str]:
    """Rewrite `number` and fusion `number` of every graph dumped in a folder, as far as it has so many."""
    found: list[str] = []
    for path in sorted(folder.iterdir()):
        name = _rewrite(_lines(path / "rewrites.txt"), number)
        if name:
            found.append(f"{path.name}: rewrite {name}; compare aten.txt with that of fuel {number - 1}")
        fusions = [line for line in _lines(path / "schedule.txt") if line.startswith("fuse: ")]
        if len(fusions) >= number:
            found.append(f"{path.name}: {fusions[number - 1]}")
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _rewrite(counts: list[str], number: int) -> str:
    """The pass that makes rewrite `number`. Dropping dead calls costs no fuel."""
    for line in counts:
        name, _, count = line.rpartition(" ")
        if not name.startswith("remove-dead"):
            number -= int(count)
            if number <= 0:
                return name
    return ""
