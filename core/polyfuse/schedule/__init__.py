"""Scheduling: dependencies, fusion, order, lifetimes, kernels."""

from polyfuse.schedule.claims import Claims, UnclaimedError, claim_nodes, is_unasked, note_interpreted
from polyfuse.schedule.result import Call, Decision, Launch, Schedule, TuningDecision, Unfused

__all__ = [
    "Call",
    "Claims",
    "Decision",
    "Launch",
    "Schedule",
    "TuningDecision",
    "UnclaimedError",
    "Unfused",
    "claim_nodes",
    "is_unasked",
    "note_interpreted",
]
