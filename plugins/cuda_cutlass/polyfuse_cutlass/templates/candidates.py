"""Candidates that CUTLASS's own templates make: which there are, in which order, and their texts."""

from __future__ import annotations

from collections.abc import Iterator

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source
from polyfuse_cutlass.codegen.epilogue import refusal, vector_of
from polyfuse_cutlass.codegen.hopper import check
from polyfuse_cutlass.problem import Problem, problem_of
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.templates.ampere import AmpereTile, ampere_source, oriented
from polyfuse_cutlass.templates.collective import Collective, collective_source, fault

_HOPPER = (
    Collective(128, 256, 2, 1),
    Collective(256, 128, 2, 1),
    Collective(256, 128, 1, 2),
    Collective(128, 128, 2, 1),
    Collective(128, 256, 2, 1, "stream-K"),
    Collective(128, 128, 2, 1, "stream-K"),
    Collective(64, 256, 2, 1, "ping-pong"),
    Collective(128, 128, 2, 1, "ping-pong"),
    Collective(64, 128, 2, 1, "ping-pong"),
    Collective(64, 128, 1, 1, "ping-pong"),
    Collective(64, 64, 1, 1, "ping-pong"),
    Collective(64, 32, 1, 1, "ping-pong"),
)
_AMPERE = (
    AmpereTile(128, 128, 2, 2, 64, 4),
    AmpereTile(128, 256, 2, 4, 64, 3),
    AmpereTile(256, 128, 4, 2, 64, 3),
    AmpereTile(128, 128, 2, 2, 128, 3),
    AmpereTile(64, 128, 2, 2, 64, 4),
    AmpereTile(128, 64, 2, 2, 64, 4),
    AmpereTile(64, 64, 2, 2, 128, 4),
)
_FEW = 64
"""Results with no more rows or columns than this are tried both ways round."""
_FINISHED = 60
"""Depths that could be multiplied while a result is finished."""
_LEAST_SHARE = 0.25
"""The least part of a tile's depth that is worth a multiprocessor of its own."""
_WIDE = 128
"""Sides of a tile from which on the multipliers wait for nothing."""


def is_library(config: Config | None) -> bool:
    """Whether a configuration is one of these."""
    return config is not None and bool(config.get("collective") or config.get("ampere"))


def library_source(kernel: Kernel, config: Config | None, target: Target, version: str) -> Source:
    """The kernel's source for CUTLASS of a version, by a configuration or the best guess for a GPU."""
    problem = _accepted(kernel)
    if config is None:
        config = library_configs(kernel, target, 1)[0]
    if config.get("ampere"):
        return ampere_source(problem, AmpereTile.of(config), version)
    return collective_source(problem, Collective.of(config), version, target.multiprocessors)


def library_configs(kernel: Kernel, target: Target, most: int) -> tuple[Config, ...]:
    """At most so many, the best guess first. Raises `UnsupportedError` for what no multiplier takes."""
    problem = _accepted(kernel)
    if target.ampere:
        tiles = sorted(_AMPERE, key=lambda one: _ampere_work(oriented(problem), one, target))
        # what cannot be made as text is refused here already
        ampere_source(problem, tiles[0], "")
        return tuple(one.config for one in tiles[:most])
    check(problem)
    found = sorted(_candidates(problem), key=lambda one: _hopper_work(problem, one, target))
    return tuple(one.config for one in found[:most])


def _accepted(kernel: Kernel) -> Problem:
    problem = problem_of(kernel)
    reason = refusal(problem.epilogue)
    if reason:
        raise UnsupportedError(reason, "another backend computes it")
    return problem


def _candidates(problem: Problem) -> Iterator[Collective]:
    _, rows, columns, _ = problem.shape
    along_rows = vector_of(problem).along_rows
    for swap in (False, True):
        # neighbours in memory should be columns of a tile, unless there are few
        if swap != along_rows and min(rows, columns) > _FEW:
            continue
        swapped = problem.swapped if swap else problem
        for one in _HOPPER:
            if not fault(swapped, one):
                yield Collective(one.rows, one.columns, one.across, one.down, one.schedule, swap)


def _hopper_work(problem: Problem, one: Collective, target: Target) -> float:
    """What the busiest multiprocessor does, in multiplications of a depth of one."""
    batch, rows, columns, depth = problem.shape
    if one.swap:
        rows, columns = columns, rows
    tiles = batch * _tiles(rows, one.rows, one.across) * _tiles(columns, one.columns, one.down)
    rounds = tiles / target.multiprocessors
    if one.schedule != "stream-K":
        rounds = float(-(-tiles // target.multiprocessors))
    elif rounds < _LEAST_SHARE:
        rounds = _LEAST_SHARE
    each = _products(one.rows, one.columns) * depth
    finish = _FINISHED * one.rows * one.columns
    if one.schedule == "ping-pong":
        return rounds * each + finish
    # blocks that share a tile's depth pass their sums on through memory
    return rounds * (each + finish) + (4 * finish if one.schedule == "stream-K" else 0)


def _ampere_work(problem: Problem, one: AmpereTile, target: Target) -> float:
    batch, rows, columns, depth = problem.shape
    tiles = batch * _tiles(rows, one.rows, 1) * _tiles(columns, one.columns, 1)
    at_once = target.multiprocessors * (2 if one.rows * one.columns <= _WIDE * _WIDE else 1)
    each = _products(one.rows, one.columns) * depth + _FINISHED * one.rows * one.columns
    return -(-tiles // at_once) * at_once / target.multiprocessors * each


def _products(rows: int, columns: int) -> float:
    """What a tile costs: as if it were wider where its operands come in too slowly."""
    return max(rows, 64) * columns * (1 + 0.2 * (_WIDE / rows + _WIDE / columns))


def _tiles(extent: int, tile: int, cluster: int) -> int:
    return -(-extent // (tile * cluster)) * cluster
