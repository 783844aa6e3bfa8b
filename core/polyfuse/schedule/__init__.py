"""Scheduling: dependencies, fusion, order, lifetimes, kernels."""

from polyfuse.schedule.kernels.claiming import is_unasked, note_interpreted
from polyfuse.schedule.result import NO_BACKEND, Apart, Call, Decision, Launch, Schedule, UnclaimedError

__all__ = [
    "NO_BACKEND",
    "Apart",
    "Call",
    "Decision",
    "Launch",
    "Schedule",
    "UnclaimedError",
    "is_unasked",
    "note_interpreted",
]
