"""`polyfuse tune`: what races have measured on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from rich.console import Console

from polyfuse.autotune.report import table_of
from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings
from polyfuse.cache.samples import SampleStore
from polyfuse.cache.timings import FAILED, TimingStore

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("what", choices=("show", "clear"), help="list what is remembered, or forget it")
    parser.add_argument("words", nargs="*", help="only problems that contain these words")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List or forget."""
    root = cache_root(Settings.resolve())
    store, samples = TimingStore(root), SampleStore(root)
    found = [
        (key, measured)
        for key, measured in store.entries()
        if all(word in measured.about for word in arguments.words)
    ]
    if arguments.what == "clear":
        for key, _ in found:
            store.forget(key)
            samples.forget(key)
        print(f"{len(found)} problems forgotten")
    elif arguments.json:
        rows = [
            {
                "problem": measured.about,
                "key": key,
                "best": measured.best,
                "milliseconds": {n: None if ms == FAILED else ms for n, ms in measured.milliseconds.items()},
            }
            for key, measured in found
        ]
        print(json.dumps(rows, indent=2))
    elif found:
        Console().print(table_of(sorted(((m.about, m) for _, m in found), key=lambda pair: pair[0])))
        for line in _learnt(samples, arguments.words):
            print(line)
    else:
        print("nothing is remembered" + (f" of {' '.join(arguments.words)}" if arguments.words else ""))
    return 0


def _learnt(samples: SampleStore, words: Sequence[str]) -> Iterator[str]:
    """What races taught of each kind of kernel, a line each."""
    from polyfuse.autotune.cost_model import fit_model

    for group in samples.groups():
        races = samples.races(group)
        about = races[0].about if races else ""
        if about and all(word in about for word in words):
            model = fit_model(races)
            count = sum(len(race.samples) for race in races)
            said = f"{count} samples of {len(races)} races, too few or no better than what is known without"
            yield f"learnt of {about}: {model.about if model is not None else said}"
