"""`polyfuse check`: run a program and compare every kernel that it compiles with the interpreter."""

from __future__ import annotations

import argparse

from polyfuse.base.settings import set_environment
from polyfuse.base.text import counted
from polyfuse.checking import tally
from polyfuse.cli.explain import configure_program, require_program, run_program

EXAMPLE = """
polyfuse check train.py --epochs 1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument(
        "--all", action="store_true", help="check every launch, not only the first of each kernel and kind"
    )
    configure_program(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the program and print the first kernel that differs; the status is 1 if one does, or the program's
    own.
    """
    require_program(arguments.program, arguments.module)
    # graphs are compiled anew, and what earlier processes found is of no account: the outcome is the same in
    # each run
    set_environment(POLYFUSE_CHECK="all" if arguments.all else "first", POLYFUSE_GRAPH_CACHE="0")
    tally.begin(forget=True)
    status = run_program(arguments.program, arguments.arguments, arguments.module)
    found = tally.result()
    tally.begin(forget=False)
    for name, reason in found.skipped.items():
        print(f"not checked: kernel {name}: {reason}")
    if found.findings:
        print(found.findings[0])
        more = len(found.findings) - 1
        if more:
            print(f"{more} more {'kernel differs' if more == 1 else 'kernels differ'}")
        return 1
    if not found.kernels:
        print("no kernel was launched: does the program call torch.compile with backend='polyfuse'?")
        return status
    kernels, launches = counted(len(found.kernels), "kernel"), counted(found.launches, "launch", "launches")
    print(f"{kernels}, {launches} checked: all agree with the interpreter")
    return status
