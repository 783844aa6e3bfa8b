"""`polyfuse tune`: what autotuning has measured on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from rich.console import Console

from polyfuse.autotune.report import as_json, table_of
from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings
from polyfuse.cache.samples import SampleStore
from polyfuse.cache.timings import TimingStore

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("what", choices=("show", "clear"), help="list what is stored, or forget it")
    parser.add_argument("words", nargs="*", help="only problems that contain these words")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List or forget."""
    root = cache_root(Settings.resolve())
    store, samples = TimingStore(root), SampleStore(root)
    found = [
        (key, record)
        for key, record in store.entries()
        if all(word in record.about for word in arguments.words)
    ]
    if arguments.what == "clear":
        for key, _ in found:
            store.forget(key)
            samples.forget(key)
        print(f"{len(found)} problems forgotten")
    elif arguments.json:
        print(json.dumps([as_json(key, record) for key, record in found], indent=2))
    elif found:
        Console().print(table_of(sorted((record for _, record in found), key=lambda record: record.about)))
        for line in _cost_models(samples, arguments.words):
            print(line)
    else:
        print("nothing is stored" + (f" of {' '.join(arguments.words)}" if arguments.words else ""))
    return 0


def _cost_models(store: SampleStore, words: Sequence[str]) -> Iterator[str]:
    """The cost model of each kind of kernel, a line each."""
    from polyfuse.autotune.cost_model import fit_model

    for group in store.groups():
        found = store.read(group)
        about = found[0].about if found else ""
        if about and all(word in about for word in words):
            model = fit_model(found)
            count = sum(len(kernel.samples) for kernel in found)
            few = f"{count} samples of {len(found)} kernels, too few or no better than the estimates"
            yield f"cost model of {about}: {model.about if model is not None else few}"
