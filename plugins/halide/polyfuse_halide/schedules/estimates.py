"""A guess of how long a schedule takes, so that of many only the likely ones are built."""

from __future__ import annotations

from math import prod

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Reduce
from polyfuse.kit import KernelFacts, Machine, seconds, work_of
from polyfuse.plugin import Config
from polyfuse_halide.codegen.ops import COST, MATH
from polyfuse_halide.schedules.plan import example_sizes

_RATE = 3e9
"""Vector operations of a thread in a second."""
_MOVED = 12e9
_UNITS = 8
_START = 2e-6
"""Seconds until a thread begins with its chunk of the work."""
_GRAIN = 16_384
_LATENCY = 4
"""Additions in which the sum of one vector is known; others can be added to meanwhile."""


def estimate(kernel: Kernel, config: Config, lanes: int) -> float:
    """Seconds, roughly, on a CPU whose vectors have so many lanes."""
    facts = KernelFacts.of(kernel)
    points = prod(example_sizes(facts, facts.sizes))
    wide = config.get("lanes", lanes)
    work = work_of(kernel, lambda op: COST.get(op, 24.0 if op in MATH else 1.0))
    # wider than the machine's, vectors are two; narrower, they leave lanes idle
    used = min(1.0, wide / lanes)
    price = 1.0 / (lanes * used)
    if any(isinstance(stmt, Reduce) for stmt in facts.statements):
        price *= max(1.0, _LATENCY / config.get("unroll", 4))
    grain = config.get("grain", _GRAIN)
    tiles = 1 if config.get("serial") else max(1, -(-points // grain))
    machine = Machine(_RATE * _UNITS, _MOVED * _UNITS, _UNITS, _START)
    if tiles == 1:
        machine = Machine(_RATE, _MOVED)
    return seconds(type(work)(work.operations * price, work.moved), machine, tiles)
