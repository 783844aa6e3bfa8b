"""Graphs that repeat themselves: the stages see a few of the periods, and the others are put in."""

from polyfuse.compiler.layers.choosing import shortened
from polyfuse.compiler.layers.repeats import with_periods

__all__ = ["shortened", "with_periods"]
