"""Artifacts on disk: their addresses, and where they are stored.

One root folder, from the option `cache_dir` or the platform's cache folder, with a folder for each kind:

    kernels/ab/<unit>/         files of one build, complete by construction
    kernels/ab/<kernel>.json   which unit holds a kernel
    graphs/ab/<graph>          graphs that were compiled before
    compiled/<graph>/          compiled graphs, one for each set of guards
    code/                      digests of installed code, by the times of its files
    timings/                   measured candidates
    samples/                   training data of the cost model
    locks/                     one lock for each artifact in the making

`artifacts.py` lists them, `limit.py` removes what was not used for longest, `archive.py` takes them to
another folder, `sharing.py` exchanges them with a store that several machines share (`remote.py`).
"""

from __future__ import annotations

from polyfuse.base.folders import cache_root, writable_root
from polyfuse.cache.graphs import GraphFolder, graph_counts
from polyfuse.cache.keys import compiled_key, graph_key, kernel_key, unit_key
from polyfuse.cache.store import KernelStore, Located

__all__ = [
    "GraphFolder",
    "KernelStore",
    "Located",
    "cache_root",
    "compiled_key",
    "graph_counts",
    "graph_key",
    "kernel_key",
    "unit_key",
    "writable_root",
]
