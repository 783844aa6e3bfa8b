"""From a schedule to the host program that runs it: steps, memory, text."""

from polyfuse.program.making import make_program
from polyfuse.program.memory import MemoryPlan
from polyfuse.program.planning import memory_plan, plan
from polyfuse.program.series import find_series
from polyfuse.program.steps import Program, ProgramInput, ProgramKernel
from polyfuse.program.text import python_text
from polyfuse.program.traffic import bytes_moved, step_bytes

__all__ = [
    "MemoryPlan",
    "Program",
    "ProgramInput",
    "ProgramKernel",
    "bytes_moved",
    "find_series",
    "make_program",
    "memory_plan",
    "plan",
    "python_text",
    "step_bytes",
]
