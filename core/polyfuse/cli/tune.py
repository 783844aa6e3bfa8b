"""`polyfuse tune`: autotune a program within a time budget, and show, forget or load what was measured."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from polyfuse.autotune.report import as_json, gain_of, lines_of
from polyfuse.base.errors import CacheError
from polyfuse.base.files import replacing
from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings, set_environment
from polyfuse.base.text import counted
from polyfuse.cache import KernelStore
from polyfuse.cache.archive import pack, unpack
from polyfuse.cache.artifacts import artifacts
from polyfuse.cache.samples import SampleStore
from polyfuse.cache.timings import Record, TimingStore
from polyfuse.cli.terminal import seconds_of

EXAMPLE = """
polyfuse tune --budget 5m -o tuned.pft model.py   # search; run it again to go on where it stopped
polyfuse tune load tuned.pft                      # on another machine of the same kind
polyfuse tune show mm                             # what was measured, the largest gain first
polyfuse tune clear                               # forget it
"""

_USE = 'compile with mode="max-autotune" to use it (or "max-autotune-no-cudagraphs")'


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument(
        "--budget",
        type=seconds_of,
        default=0.0,
        metavar="TIME",
        help="for all searches, as 90s or 5m; default: none",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write what was measured to a file")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, not a file")
    parser.add_argument("what", metavar="PROGRAM|show|clear|load", help="what to tune, or what to do")
    rest = parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="arguments of the program; words of problems; the file to load"
    )
    rest.required = False  # argparse would name it among those that are missing


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked."""
    if arguments.what in ("show", "clear", "load"):
        return _on_store(arguments.what, arguments.rest)
    return _tune(arguments)


def _tune(arguments: argparse.Namespace) -> int:
    """Run a program with autotuning on, and tell what was found; returns the program's own status."""
    from polyfuse.cli.explain import require_program, run_program

    require_program(arguments.what, arguments.module)
    from polyfuse.compiler.session import autotuned_problems

    # what was compiled before would be read, and not tuned
    changes = {"GEMM": "fastest", "TUNE_KERNELS": "1", "AUTOTUNE_BACKENDS": "1", "GRAPH_CACHE": "0"}
    if arguments.budget:
        changes["MAX_AUTOTUNE_SECONDS"] = str(math.ceil(arguments.budget))
    set_environment(**{f"POLYFUSE_{name}": value for name, value in changes.items()})
    status = run_program(arguments.what, arguments.rest, arguments.module)
    root = cache_root(Settings.resolve())
    store, keys = TimingStore(root), autotuned_problems()
    _forget_decisions(root)
    found = [(key, store.read(key)) for key in keys]
    if not found:
        print("nothing was tuned: does the program call torch.compile with backend='polyfuse'?")
        return status
    for _, record in _by_gain(found):
        _print(record)
    open_ones = sum(record.best is None for _, record in found)
    print(f"{counted(len(found), 'problem')}, {len(found) - open_ones} searched to the end; {_USE}")
    if open_ones:
        searches = counted(open_ones, "search", "searches")
        print(f"the budget ended {searches}; the same command goes on where they stopped")
    if arguments.output is not None:
        count = _write(root, keys, arguments.output)
        print(f"{arguments.output}: {count} measurements, to be read with `polyfuse tune load`")
    return status


def _on_store(what: str, words: Sequence[str]) -> int:
    """`show`, `clear` or `load`."""
    parser = argparse.ArgumentParser(prog=f"polyfuse tune {what}")
    if what == "load":
        parser.add_argument("file", type=Path)
        return _load(parser.parse_args(words).file)
    parser.add_argument("words", nargs="*", help="only problems that contain these words")
    if what == "show":
        parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(words)
    root = cache_root(Settings.resolve())
    store, samples = TimingStore(root), SampleStore(root)
    found = [
        (key, record)
        for key, record in store.entries()
        if all(word in record.about for word in arguments.words)
    ]
    if what == "clear":
        for key, _ in found:
            store.forget(key)
            samples.forget(key)
        _forget_decisions(root)
        print(f"{len(found)} problems forgotten")
    elif arguments.json:
        print(json.dumps([as_json(key, record) for key, record in _by_gain(found)], indent=2))
    elif found:
        for _, record in _by_gain(found):
            _print(record)
        for line in _cost_models(samples, arguments.words):
            print(line)
    else:
        print("nothing is stored" + (f" of {' '.join(arguments.words)}" if arguments.words else ""))
    return 0


def _by_gain(found: Sequence[tuple[str, Record]]) -> list[tuple[str, Record]]:
    return sorted(found, key=lambda pair: (-gain_of(pair[1])[0], pair[1].about))


def _print(record: Record) -> None:
    head, tail = lines_of(record)
    print(f"{head}\n{'':>23}{tail}")


def _write(root: Path, keys: Sequence[str], file: Path) -> int:
    """Write the measurements of problems, and the training data of the cost model, to a file."""
    wanted = set(keys)
    found = [
        item
        for kind in ("timings", "samples")
        for item in artifacts(root, kind)
        if kind == "samples" or item.path.stem in wanted
    ]
    try:
        with replacing(file) as temporary, open(temporary, "xb") as stream:
            return pack(root, found, stream)
    except OSError as error:
        raise CacheError(f"{file} cannot be written ({error})", "name another file") from error


def _load(file: Path) -> int:
    settings = Settings.resolve()
    store = KernelStore.open(settings)
    try:
        with open(file, "rb") as stream:
            done = unpack(store.root, stream, store.add)
    except OSError as error:
        raise CacheError(f"{file} cannot be read ({error})", "name a file of `polyfuse tune -o`") from error
    _forget_decisions(store.root)
    print(f"{done.added} measurements added, {done.present} were there, {done.damaged} damaged")
    print(f"they are used on machines like the one that made them; {_USE}")
    return 0


def _forget_decisions(root: Path) -> None:
    """Remove compiled graphs: they hold what earlier measurements decided."""
    for item in artifacts(root, "compiled"):
        item.remove()


def _cost_models(store: SampleStore, words: Sequence[str]) -> Iterator[str]:
    """The cost model of each kind of kernel, a line each."""
    from polyfuse.autotune.cost_model import fit_model

    for group in store.groups():
        found = store.read(group)
        about = found[0].about if found else ""
        if about and all(word in about for word in words):
            model = fit_model(found)
            count = sum(len(kernel.samples) for kernel in found)
            kernels = counted(len(found), "kernel")
            few = f"{count} samples of {kernels}, too few or no better than the estimates"
            yield f"cost model of {about}: {model.about if model is not None else few}"
