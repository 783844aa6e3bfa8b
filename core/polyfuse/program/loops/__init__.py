"""Equal layers of a program as a loop: which steps repeat themselves, and what differs from turn to turn."""

from polyfuse.program.loops.finding import LoopFinder, NotALoop, Skipped

__all__ = ["LoopFinder", "NotALoop", "Skipped"]
