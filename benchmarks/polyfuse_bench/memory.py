"""Peak memory of a compiled call in this process, seen from outside and from inside.

Outside: the kernel's high-water mark of resident memory (reset through /proc/self/clear_refs), minus what
was resident before, with the C library set to return freed blocks at once. Inside: the running sum of
torch's own CPU allocations, from the profiler's memory events; storage a compiler gets elsewhere is not in
it.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from polyfuse_bench.targets import target


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes above the resident memory before: while compiling, and while running afterwards."""
    work = target(task)
    with torch.set_grad_enabled(work.gradients):
        before = _resident_now()
        call = work.start(task["backend"])
        call()
        compiling = _high_water() - before
        call()
        before_run = _resident_now()
        for _ in range(task.get("runs", 3)):
            call()
        running = _high_water() - before_run
        allocated = torch_peak(call)
    return {"compile_peak": compiling, "run_peak": running, "torch_peak": allocated}


def _resident_now() -> int:
    """Collect garbage, reset the high-water mark, and answer the resident bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _high_water() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}: memory is measured on Linux only")
    return int(found.group(1)) * 1024


def torch_peak(call: Callable[[], Any]) -> int:
    """The largest sum of live torch allocations made during one call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak
