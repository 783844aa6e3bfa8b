"""A guess of how long a tiling takes, so that of many only the likely ones are built."""

from __future__ import annotations

from math import prod

from polyfuse.ir.kernel import Kernel
from polyfuse.kit import Machine, fill, seconds, work_of
from polyfuse.plugin import Config
from polyfuse.symbolic import axis_name
from polyfuse_triton.matmul.multiply_add import as_sums
from polyfuse_triton.matmul.plan import MatmulPlan, matmul_of
from polyfuse_triton.matmul.tiling import plan_seconds, prefers_sums
from polyfuse_triton.target import Target
from polyfuse_triton.tiling.choice import choose_plan
from polyfuse_triton.tiling.plan import Plan

_SUSTAINED = 0.86
"""Of the highest clock, what a GPU keeps under load."""
_LANES = 128
"""Operations of a multiprocessor in a cycle."""
_START = 1e-6
"""Seconds in which a program begins and ends."""
_WARPS = 64
_PROGRAMS = 32
"""Warps and programs that a multiprocessor holds at most."""
_HELD = 64
"""Points of a thread beyond which registers run out."""
_FEW = 4
"""Points of a thread below which its loads are narrow."""


def estimate(kernel: Kernel, config: Config, target: Target) -> float | None:
    """Seconds, roughly; None where nothing is known."""
    matmul = matmul_of(kernel)
    if matmul is not None:
        # sums and tiles of one matmul are guessed in ways that do not compare
        return None if prefers_sums(matmul) else plan_seconds(matmul, target, MatmulPlan.of(config))
    loops = as_sums(kernel)
    return loop_seconds(loops, choose_plan(loops, target, config), target)


def loop_seconds(kernel: Kernel, plan: Plan, target: Target) -> float | None:
    """A guess for tiles of ordinary loops."""
    if plan.groups is not None:
        return None
    hints = dict(zip((axis_name(a) for a in (*kernel.axes, *kernel.raxes)), kernel.size_hints))
    if len(hints) < len(kernel.axes) + len(kernel.raxes):
        return None
    sides = [(prod(hints[name] for name in dim.axes), dim.block) for dim in plan.dims]
    tiles = prod(-(-extent // block) for extent, block in sides[: len(plan.program_dims)])
    tiles *= prod(hints[name] for name in plan.grid)
    programs = max(1, min(_WARPS // max(1, plan.num_warps), _PROGRAMS))
    machine = Machine(
        operations=target.multiprocessors * _LANES * _SUSTAINED * target.clock,
        moved=target.bandwidth,
        units=target.multiprocessors * programs,
        start=_START,
    )
    each = plan.elements / (plan.num_warps * target.warp)
    narrow = 1.0 + 0.1 * max(0.0, _FEW / each - 1.0)
    full = max(1.0, each / _HELD)
    return seconds(work_of(kernel), machine, max(1, tiles), fill(sides)) * narrow * full
