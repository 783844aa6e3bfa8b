"""Graphs that repeat themselves: the stages see a few of the periods, and the others are put in."""

from polyfuse.compiler.layers.choosing import shortened
from polyfuse.compiler.layers.looping import program_in_loop
from polyfuse.compiler.layers.repeats import Expansion, with_periods
from polyfuse.compiler.layers.shown import Layers

__all__ = ["Expansion", "Layers", "program_in_loop", "shortened", "with_periods"]
