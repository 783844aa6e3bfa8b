"""Scheduling: dependencies, fusion, order, lifetimes, kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.base.lazy import attribute
from polyfuse.schedule.result import Call, Decision, Launch, Schedule, TuningDecision, Unfused

if TYPE_CHECKING:
    from polyfuse.schedule.claims import Claims, UnclaimedError, claim_nodes, is_unasked, note_interpreted

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

# Reports of stored graphs hold decisions: who reads them imports nothing that schedules.
_CLAIMS = ("Claims", "UnclaimedError", "claim_nodes", "is_unasked", "note_interpreted")
_IMPORT_PATHS = {name: f"polyfuse.schedule.claims:{name}" for name in _CLAIMS}


def __getattr__(name: str) -> object:
    return attribute(__name__, _IMPORT_PATHS, name)
