"""`polyfuse conformance`: does a backend compute what the representation means."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from polyfuse.testing.conformance import run as run_conformance
from polyfuse.testing.matrix import Matrix, Status

EXAMPLE = """
polyfuse conformance NAME --quick -j 2
polyfuse conformance NAME --format html
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("name", help="the backend to test, such as `polyfuse backends` lists")
    parser.add_argument("--quick", action="store_true", help="leave out what differs only in type or size")
    parser.add_argument(
        "--kernels", action="store_true", help="run kernels alone, without the checks of contract and device"
    )
    parser.add_argument(
        "--format",
        choices=("table", "markdown", "json", "html"),
        default="table",
        help="how the matrix is printed; a table for the terminal when not given",
    )
    parser.add_argument("--device", default="cpu", help="the device to run on; cpu when not given")
    parser.add_argument(
        "-j", "--jobs", type=int, default=1, help="processes that share the cases; 1 when not given"
    )
    parser.add_argument(
        "--passes",
        type=Path,
        metavar="FILE",
        help="a list of what has passed, which is extended; what it lists and does not pass is an error",
    )
    parser.add_argument(
        "--repro",
        type=Path,
        metavar="FILE",
        help="where the first failing kernel is written; NAME-failure.ir when not given",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the kit and print the matrix; the status is 1 when something failed, or passed before."""
    contract = not arguments.kernels
    matrix = run_conformance(arguments.name, arguments.quick, arguments.device, arguments.jobs, contract)
    if arguments.format == "table":
        matrix.print(Console())
    else:
        print(
            {"markdown": matrix.markdown, "json": matrix.json, "html": matrix.html}[arguments.format](),
            end="",
        )
    _name_first_failure(matrix, arguments.repro or Path(f"{arguments.name}-failure.ir"), arguments.name)
    lost = update_pass_list(arguments.passes, matrix) if arguments.passes else ()
    for label in lost:
        print(f"passed before, and does not now: {label}", file=sys.stderr)
    return 0 if matrix.ok and not lost else 1


def _name_first_failure(matrix: Matrix, path: Path, backend: str) -> None:
    failure = matrix.first_failure()
    if failure is not None:
        path.write_text(failure.kernel, encoding="utf-8")
        print(
            f"first failing kernel: {failure.label}; run it: polyfuse replay {path} --backend {backend}",
            file=sys.stderr,
        )


def update_pass_list(path: Path, matrix: Matrix) -> tuple[str, ...]:
    """Add what passed to the file, and return what it lists that was tried and did not pass.

    Nothing is taken out of the file: who gives up a cell deletes its line by hand. A label that this run did
    not try, such as those that a quick run leaves out, stays as it is.
    """
    known = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    worst: dict[str, Status] = {}
    for cell in matrix.cells:
        if worst.get(cell.label, Status.PASS) is Status.PASS:
            worst[cell.label] = cell.status
    passed = {label for label, status in worst.items() if status is Status.PASS}
    path.write_text("".join(f"{label}\n" for label in sorted(known | passed)), encoding="utf-8")
    return tuple(sorted(known & (worst.keys() - passed)))
