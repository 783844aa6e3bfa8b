"""Fusions that would cost more than they save."""

from __future__ import annotations

from typing import Final

from polyfuse.kit.streams import few_streams
from polyfuse.plugin import FusionRule

__all__ = ["RULES"]

RULES: Final = (FusionRule("few-streams", allows=few_streams),)
