"""`polyfuse conformance`: does a backend compute what the representation means."""

from __future__ import annotations

import argparse

from rich.console import Console

from polyfuse.testing.conformance import run as run_conformance

__all__ = ["EXAMPLE", "configure", "run"]

EXAMPLE = """
polyfuse conformance NAME --quick --jobs 2
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("name", help="the backend to test, such as `polyfuse backends` lists")
    parser.add_argument("--quick", action="store_true", help="leave out what differs only in type or size")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for the support matrix")
    parser.add_argument("--device", default="cpu", help="the device to run on; cpu when not given")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that share the cases; 1 when not given"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the kit and print the matrix; the status is 1 when something failed."""
    matrix = run_conformance(arguments.name, arguments.quick, arguments.device, arguments.jobs)
    if arguments.markdown:
        print(matrix.markdown(), end="")
    else:
        matrix.print(Console())
    return 0 if matrix.ok else 1
