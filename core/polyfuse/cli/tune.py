"""`polyfuse tune`: what races have measured on this machine."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings
from polyfuse.cache.timings import LOST, TimingStore
from polyfuse.select.progress import table_of

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("what", choices=("show", "clear"), help="list what is remembered, or forget it")
    parser.add_argument("words", nargs="*", help="only problems that contain these words")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List or forget."""
    store = TimingStore(cache_root(Settings.resolve()))
    found = [
        (key, measured)
        for key, measured in store.entries()
        if all(word in measured.about for word in arguments.words)
    ]
    if arguments.what == "clear":
        for key, _ in found:
            store.forget(key)
        print(f"{len(found)} problems forgotten")
    elif arguments.json:
        rows = [
            {
                "problem": measured.about,
                "key": key,
                "best": measured.best,
                "milliseconds": {n: None if ms == LOST else ms for n, ms in measured.milliseconds.items()},
            }
            for key, measured in found
        ]
        print(json.dumps(rows, indent=2))
    elif found:
        Console().print(table_of(sorted(((m.about, m) for _, m in found), key=lambda pair: pair[0])))
    else:
        print("nothing is remembered" + (f" of {' '.join(arguments.words)}" if arguments.words else ""))
    return 0
