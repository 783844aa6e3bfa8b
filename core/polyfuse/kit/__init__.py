"""What code generators share."""

from polyfuse.kit.contraction import Contraction, Operand, match
from polyfuse.kit.device_clock import device_milliseconds
from polyfuse.kit.roofline import Machine, Work, fill, rounds, seconds, work_of

__all__ = [
    "Contraction",
    "Machine",
    "Operand",
    "Work",
    "device_milliseconds",
    "fill",
    "match",
    "rounds",
    "seconds",
    "work_of",
]
