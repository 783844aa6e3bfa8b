"""`polyfuse replay`: run a dumped graph or kernel, or a launch that a check wrote, beside the interpreter."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.checking.repro import is_repro
from polyfuse.compiler.reports.replay import replay, replay_launch
from polyfuse.compiler.session import session_for

EXAMPLE = """
POLYFUSE_DUMP=stages python model.py
polyfuse replay stages/inference_0_0/graph.ir --backend NAME
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument(
        "file", help="a dumped graph.ir or kernel, a launch that a check wrote, or - for standard input"
    )
    parser.add_argument("--backend", help="who compiles it; the first in order when not given")
    parser.add_argument("--seed", type=int, default=0, help="for the random inputs")


def run(arguments: argparse.Namespace) -> int:
    """Print what differs; the status is 1 if anything does."""
    if arguments.file != "-" and is_repro(Path(arguments.file)):
        about, problem = replay_launch(Path(arguments.file))
        print(f"found: {about}")
        print(f"now: {problem or 'it agrees with the interpreter'}")
        return 1 if problem else 0
    options = {"backends": (arguments.backend,)} if arguments.backend else {}
    session = session_for(Settings.resolve(None, {**options, "strict": True}))
    if arguments.backend:
        session.plugins.backend(arguments.backend)  # raises what is wrong with it before anything runs
    found = replay(_read(arguments.file), session, arguments.seed)
    for item in found:
        print(f"{item.name}: {item.problem or 'matches the reference'}")
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
