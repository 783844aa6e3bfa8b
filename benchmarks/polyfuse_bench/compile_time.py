"""The time from `torch.compile(...)` to the first result, in this fresh process.

Imports that happen on the way count; `import torch`, the model's construction and one eager run do not.
Whether the start is cold or warm is the parent's business: it points the cache variables at an empty or at
a filled folder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from polyfuse_bench.targets import target


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of the first call, and of the second for comparison."""
    work = target(task)
    with torch.set_grad_enabled(work.gradients):
        began = time.perf_counter()
        call = work.start(task["backend"])
        call()
        first = time.perf_counter()
        call()
        second = time.perf_counter()
    return {"first_call": first - began, "second_call": second - first}
