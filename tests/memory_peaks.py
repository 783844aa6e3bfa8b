"""How much memory of torch's a call holds at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak"]


def peak(step: Callable[[], Any]) -> int:
    """Most bytes that a call holds at once beyond what there was before it, when it has run before."""
    for _ in range(2):
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
