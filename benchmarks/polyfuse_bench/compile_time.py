"""The time from `torch.compile(...)` to the first result, in this fresh process.

Imports that happen on the way count, from byte code, which installed packages have; `import torch`, the
model's construction and one eager run do not. Whether the start is cold or warm is the parent's business: it
points the cache variables at an empty or at a filled folder.
"""

from __future__ import annotations

import compileall
import importlib.util
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

import torch

from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.targets import target
from polyfuse_bench.turns import turn


@cache
def keep_byte_code() -> None:
    """Compile the byte code of Polyfuse and its plugins where it is missing, as installing them does: torch's
    is there already."""
    plugins = {point.value.partition(".")[0] for point in metadata.entry_points(group="polyfuse.backends")}
    for package in ("polyfuse", *sorted(plugins)):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            compileall.compile_dir(folder, quiet=2)


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of the first call, and of the second for comparison."""
    work, wait = target(task), waiter(task.get("device", CPU))
    if task.get("after"):
        # one more kernel: what a process does only once is over
        target({**task, "name": task["after"]}).start(task["backend"])()
    with turn(), torch.set_grad_enabled(work.gradients):
        wait()
        began = time.perf_counter()
        call = work.start(task["backend"])
        call()
        wait()
        first = time.perf_counter()
        call()
        wait()
        second = time.perf_counter()
    return {"first_call": first - began, "second_call": second - first}
