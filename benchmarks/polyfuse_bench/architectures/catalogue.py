"""All architectures, in the order in which they are tried: each family's first member before any second."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from fnmatch import fnmatch

from polyfuse_bench.architectures.built import Built, Entry
from polyfuse_bench.architectures.libraries import library

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")


def entries(libraries: Sequence[str] = LIBRARIES, only: Sequence[str] = ()) -> list[Entry]:
    """Architectures of the libraries that are installed; `only` holds patterns, as `qwen*` or `timm:*`."""
    found = [
        entry
        for name in libraries
        if library(name) is not None
        for entry in importlib.import_module(f"polyfuse_bench.architectures.of_{name}").entries()
    ]
    if only:
        found = [
            entry for entry in found if any(fnmatch(entry.name, p) or fnmatch(entry.key, p) for p in only)
        ]
    return _families_first(found)


def build(entry: Entry, seed: int) -> Built:
    library(entry.library)
    made: Built = importlib.import_module(f"polyfuse_bench.architectures.of_{entry.library}").build(
        entry.name, seed
    )
    return made


def _families_first(found: Sequence[Entry]) -> list[Entry]:
    """Libraries alternate, and in each the first members of families come first."""
    ranked = []
    for name in dict.fromkeys(entry.library for entry in found):
        mine = [entry for entry in found if entry.library == name]
        seen: dict[str, int] = {}
        rounds = []
        for entry in mine:
            rounds.append(seen.get(entry.family, 0))
            seen[entry.family] = rounds[-1] + 1
        ordered = sorted(range(len(mine)), key=lambda i: (rounds[i], i))
        firsts = max(1, sum(r == 0 for r in rounds))
        ranked += [((rounds[i], position / firsts), mine[i]) for position, i in enumerate(ordered)]
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]
