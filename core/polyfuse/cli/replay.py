"""`polyfuse replay`: compile a dumped graph or kernel again and run it beside the interpreter."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.compiler.replay import replay
from polyfuse.compiler.session import session_for

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("file", help="a dumped graph.ir or kernel, or - for standard input")
    parser.add_argument("--backend", help="who compiles it; the first in order when not given")
    parser.add_argument("--seed", type=int, default=0, help="for the random inputs")


def run(arguments: argparse.Namespace) -> int:
    """Print what differs; the status is 1 if anything does."""
    options = {"backends": (arguments.backend,)} if arguments.backend else {}
    session = session_for(Settings.resolve(None, {**options, "strict": True}))
    found = replay(_read(arguments.file), session, arguments.seed)
    for item in found:
        print(f"{item.name}: {item.problem or 'as the interpreter has it'}")
    return 1 if any(item.problem for item in found) else 0


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise PolyfuseError(
            f"{name} cannot be read ({error.strerror})", "name a file of POLYFUSE_DUMP"
        ) from error
