"""The answer to "can you?": yes, or no with a reason that a user can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Yes:
    """A claim: it can be done."""

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True)
class No:
    """A claim: it cannot be done; `reason` is a clause such as "f64 atomics are missing on this device"."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


Claim = Yes | No


def all_of(*claims: Claim) -> Claim:
    """Return the first `No`, or `Yes` when there is none."""
    for claim in claims:
        if isinstance(claim, No):
            return claim
    return Yes()
