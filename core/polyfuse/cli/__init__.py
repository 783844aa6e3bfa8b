"""The `polyfuse` command. One file for each subcommand, found by name in the table below.

A subcommand's module has `EXAMPLE` (lines for its help), `configure(parser)` and `run(arguments) -> exit
status`. It is imported only when it is asked for, so `polyfuse --help` stays quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from textwrap import indent
from typing import Final, Protocol, cast

from polyfuse.base.errors import PolyfuseError

__all__ = ["COMMANDS", "main"]

# name: (module, help)
COMMANDS: Final = {
    "backends": ("polyfuse.cli.backends", "list the installed backends and their state"),
    "bench": ("polyfuse.cli.bench", "measure a model in eager mode and by each compiler and backend"),
    "bisect": ("polyfuse.cli.bisect", "find the rewrite or fusion that makes a program fail"),
    "cache": ("polyfuse.cli.cache", "show, clear, trim, export or import the cache folder"),
    "check": ("polyfuse.cli.check", "run a program and compare every kernel with the interpreter"),
    "collectives": (
        "polyfuse.cli.ranks.collectives",
        "measure what collectives cost between processes, or show it",
    ),
    "conformance": ("polyfuse.cli.conformance", "test a backend against the reference interpreter"),
    "doctor": ("polyfuse.cli.doctor", "check this installation and every backend's toolchain"),
    "explain": ("polyfuse.cli.explain", "run a program and print what was compiled and why"),
    "new-backend": ("polyfuse.cli.new_backend.command", "write a distribution with a backend, to start from"),
    "package": ("polyfuse.cli.package", "describe or verify an ahead-of-time package"),
    "replay": ("polyfuse.cli.replay", "compile a dumped graph or kernel and compare it with the interpreter"),
    "report": ("polyfuse.cli.report", "run a program and write an HTML page of what was compiled and why"),
    "settings": ("polyfuse.cli.settings", "list every option with its value here"),
    "tune": (
        "polyfuse.cli.tune",
        "autotune a program; show, load or forget what was measured",
    ),
}


_BROKEN_PIPE: Final = 141
"""The status of a program whose reader went away, as shells report it."""


class Command(Protocol):
    """What a subcommand's module provides."""

    EXAMPLE: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, and return the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. Errors of Polyfuse are shown without a traceback, and
    a reader that goes away (`polyfuse tune show | head`) ends the command quietly.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="polyfuse", description="Inspect and test Polyfuse.")
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    choices = parser.add_subparsers(dest="command", metavar="command")
    chosen = next((word for word in words if not word.startswith("-")), None)
    command: Command | None = None
    for name, (module, help_text) in COMMANDS.items():
        child = choices.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            command = cast(Command, import_module(module))
            child.formatter_class = argparse.RawDescriptionHelpFormatter
            child.epilog = f"example:\n{indent(command.EXAMPLE.strip(), '  ')}"
            command.configure(child)
    arguments = parser.parse_args(words)
    if arguments.version:
        from polyfuse.base.code import version

        print(version())
        return 0
    if command is None:
        parser.print_help()
        return 2
    try:
        status = command.run(arguments)
        sys.stdout.flush()
        return status
    except PolyfuseError as error:
        print(f"polyfuse: {error} [{error.code}]", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # what is still buffered would raise again when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
