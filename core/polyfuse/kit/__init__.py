"""What code generators share."""

from polyfuse.kit.aliasing import changed_arguments, may_alias, memories, same_names, without_aliases
from polyfuse.kit.contraction import Contraction, Operand, match
from polyfuse.kit.device_clock import device_milliseconds
from polyfuse.kit.roofline import Machine, Work, fill, rounds, seconds, work_of

__all__ = [
    "Contraction",
    "Machine",
    "Operand",
    "Work",
    "changed_arguments",
    "device_milliseconds",
    "fill",
    "match",
    "may_alias",
    "memories",
    "rounds",
    "same_names",
    "seconds",
    "without_aliases",
    "work_of",
]
