"""Graphs that repeat themselves: the stages see a few of the periods, and the others are put in."""

from polyfuse.compiler.layers.choosing import shortened
from polyfuse.compiler.layers.looping import program_in_loop
from polyfuse.compiler.layers.repeats import Expansion, with_periods

__all__ = ["Expansion", "program_in_loop", "shortened", "with_periods"]
