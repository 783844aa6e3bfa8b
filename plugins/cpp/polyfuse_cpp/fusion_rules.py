"""Fusions that would cost more than they save."""

from __future__ import annotations

from typing import Final

from polyfuse.kit.streams import too_many_streams
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes


def few_streams(pair: FusionPair) -> Claim:
    """Whether two groups of nodes share enough data to become a kernel of many arrays."""
    reason = too_many_streams(pair.streams, pair.shared_bytes, pair.touched_bytes)
    return No(reason) if reason else Yes()


RULES: Final = (FusionRule("few-streams", allows=few_streams),)
