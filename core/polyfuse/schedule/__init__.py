"""Scheduling: dependencies, fusion, order, lifetimes, kernels."""

from polyfuse.schedule.result import NO_BACKEND, Apart, Call, Decision, Launch, Schedule, UnclaimedError
from polyfuse.schedule.schedule import schedule_graph

__all__ = [
    "NO_BACKEND",
    "Apart",
    "Call",
    "Decision",
    "Launch",
    "Schedule",
    "UnclaimedError",
    "schedule_graph",
]
