"""The tilings of a problem: which are possible, and which are likely to be fast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source
from polyfuse_cutlass.codegen.epilogue import refusal, vector_of
from polyfuse_cutlass.codegen.hopper import check, fault_of, hopper_source
from polyfuse_cutlass.codegen.row_statistics import reduction_refusal
from polyfuse_cutlass.problem import Problem, problem_of
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import MULTIPROCESSOR_SHARED, RESERVED, SHARED_LIMIT, Tiling

_MOST = 12
_MOST_ALIKE = 3
_MOST_STAGES = 12
_LEAST_USED = 16
_LEAST_RING = 100 << 10
"""Bytes of stages that keep memory busy from one multiprocessor."""
_MOST_ROUNDS = 8
"""Rounds in which tiles of a fitting width may be taken: of more, the last hardly counts."""
_FEW_COLUMNS = 128
"""Results with fewer columns than this get tiles that are no wider."""


def emit(kernel: Kernel, config: Config | None, target: Target) -> Source:
    """The kernel's source, by a configuration or the best guess."""
    problem = _accepted(kernel)
    tiling = Tiling.of(config) if config is not None else _ranked(problem, target)[0]
    return hopper_source(problem, tiling)


def configs(kernel: Kernel, target: Target) -> tuple[Config, ...]:
    """Tilings worth timing, the best guess first. Raises `UnsupportedError` for what is not generated."""
    return tuple(t.config for t in _various(_ranked(_accepted(kernel), target)))


def every_config(kernel: Kernel, target: Target) -> tuple[Config, ...]:
    """All tilings that are thought of, the best guess first: what `configs` chooses from."""
    return tuple(t.config for t in _ranked(_accepted(kernel), target))


def neighbours(kernel: Kernel, config: Config, target: Target) -> tuple[Config, ...]:
    """Tilings that differ from one in one thing."""
    problem, tiling = _accepted(kernel), Tiling.of(config)
    changed = [replace(tiling, raster=n) for n in (tiling.raster // 2, tiling.raster * 2) if n]
    changed.append(replace(tiling, stages=tiling.stages - 1))
    changed.append(replace(tiling, fragment=96 - tiling.fragment))
    if tiling.split > 1:
        changed += [replace(tiling, split=tiling.split * 2), replace(tiling, split=tiling.split // 2)]
    for across, down in ((1, 1), (2, 1), (1, 2), (2, 2)):
        if abs(across - tiling.across) + abs(down - tiling.down) == 1:
            changed.append(replace(tiling, across=across, down=down))
    return tuple(t.config for t in changed if t != tiling and not _fault(problem, t))


def _accepted(kernel: Kernel) -> Problem:
    problem = problem_of(kernel)
    reason = refusal(problem.epilogue) or reduction_refusal(problem)
    if reason:
        raise UnsupportedError(reason, "another backend computes it")
    check(problem)
    return problem


def _fault(problem: Problem, tiling: Tiling) -> str:
    if tiling.stages < 2 or tiling.split > 8:
        return "too few stages, or too many splits"
    return fault_of(problem.swapped if tiling.swap else problem, tiling)


def _ranked(problem: Problem, target: Target) -> list[Tiling]:
    found = [t for t in _candidates(problem, target) if not _fault(problem, t)]
    if not found:
        raise UnsupportedError("no tiling fits the operands", "another backend computes it")
    return sorted(dict.fromkeys(found), key=lambda t: estimate(problem, t, target))


def _various(ranked: Iterable[Tiling]) -> list[Tiling]:
    """The first of a list, without many that differ only in who shares what."""
    found: list[Tiling] = []
    alike: dict[Tiling, int] = {}
    for tiling in ranked:
        kind = replace(tiling, stages=0, across=1, down=1)
        alike[kind] = alike.get(kind, 0) + 1
        if alike[kind] <= _MOST_ALIKE:
            found.append(tiling)
        if len(found) == _MOST:
            break
    return found


def _candidates(problem: Problem, target: Target) -> Iterator[Tiling]:
    along_rows = vector_of(problem).along_rows
    for swap in (False, True):
        batch, rows, columns, depth = problem.shape
        if swap:
            rows, columns = columns, rows
        # neighbours in memory should be columns of a tile, unless there are few
        if columns > _FEW_COLUMNS and swap != along_rows and rows > _FEW_COLUMNS:
            continue
        for tiling in (*_wide(swap), *_fitted(rows, columns * batch, swap, target)):
            if columns > _FEW_COLUMNS // 2 or tiling.columns <= 64:
                yield _whole_lines(_filled(tiling))
        if columns <= _FEW_COLUMNS:
            few = _round_up(columns, 8) if columns <= 32 else _round_up(columns, 32)
            for consumers in (1, 2):
                for split in (1, 2, 4, 8):
                    if split * 256 <= max(depth, 256):
                        yield from _resident(Tiling(1, few, consumers, split=split, swap=swap))
            yield from _even(few, swap, rows * max(1, batch), depth, target)


def _whole_lines(tiling: Tiling) -> Tiling:
    """Such that whole lines are stored, where that costs no stage."""
    longer = replace(tiling, fragment=64)
    fits = tiling.consumers > 1 and tiling.columns % 64 == 0 and tiling.split == 1
    return longer if fits and longer.shared_bytes <= SHARED_LIMIT else tiling


def _fitted(rows: int, columns: int, swap: bool, target: Target) -> Iterator[Tiling]:
    """With tiles of as many columns as make a number of tiles that multiprocessors share without a rest."""
    for blocks, consumers, pingpong in (
        (1, 1, False),
        (1, 2, False),
        (2, 2, False),
        (1, 2, True),
        (2, 2, True),
    ):
        tall = -(-rows // Tiling(blocks, 64, consumers, pingpong).rows)
        for rounds in range(1, _MOST_ROUNDS + 1):
            each = target.multiprocessors * rounds // tall
            if not each:
                continue
            fit = -(-columns // each)
            fit = _round_up(fit, 8 if fit <= 64 else 16)
            if fit >= 16 and fit * blocks <= 256:
                for across, down in ((1, 1), (2, 1), (1, 2)):
                    yield Tiling(blocks, fit, consumers, pingpong, across=across, down=down, swap=swap)


def _even(columns: int, swap: bool, rows: int, depth: int, target: Target) -> Iterator[Tiling]:
    """With tiles of as many rows as give each multiprocessor equally many, for memory decides."""
    for split in (1, 2, 4):
        for together in (1, 2):
            used = _round_up(-(-rows * split // (target.multiprocessors * together)), 8)
            if not _LEAST_USED <= used <= 128 or used % 64 == 0 or split * 256 > max(depth, 256):
                continue
            for across in (1, 2) if columns > 32 and split == 1 else (1,):
                tiling = Tiling(
                    1 if used < 64 else 2, columns, 1, across=across, split=split, swap=swap, used=used
                )
                room = MULTIPROCESSOR_SHARED // together - RESERVED - replace(tiling, stages=0).shared_bytes
                deep = max(_LEAST_RING // tiling.stage_bytes, 4)
                yield replace(tiling, stages=min(deep, room // tiling.stage_bytes))
            if used > 64:
                yield _filled(Tiling(1, columns, 2, split=split, swap=swap, used=used))


def _resident(tiling: Tiling) -> Iterator[Tiling]:
    """With as many stages as there is room for, and with so few that more blocks fit."""
    yield _filled(tiling)
    if tiling.consumers == 1:
        for blocks in (2, 3):
            two_buffers = replace(tiling, stages=0).shared_bytes
            stages = (MULTIPROCESSOR_SHARED // blocks - RESERVED - two_buffers) // tiling.stage_bytes
            if 3 <= stages < _MOST_STAGES:
                yield replace(tiling, stages=stages)


def _wide(swap: bool) -> Iterator[Tiling]:
    for across, down in ((2, 2), (1, 2)):
        yield Tiling(1, 64, across=across, down=down, swap=swap)
        yield Tiling(1, 128, across=across, down=down, swap=swap)
        yield Tiling(2, 128, pingpong=True, across=across, down=down, swap=swap)
    yield Tiling(1, 256, across=2, swap=swap)
    yield Tiling(1, 256, swap=swap)
    yield Tiling(2, 128, down=2, swap=swap)
    yield Tiling(2, 128, across=2, swap=swap)
    for across in (2, 1):
        yield Tiling(2, 128, pingpong=True, across=across, swap=swap)
        yield Tiling(1, 256, pingpong=True, across=across, swap=swap)
        yield Tiling(1, 192, across=across, swap=swap)
        yield Tiling(1, 176, across=across, swap=swap)
        yield Tiling(1, 128, across=across, swap=swap)
        yield Tiling(1, 128, pingpong=True, across=across, swap=swap)
    for split in (2, 4):
        for across, down in ((1, 1), (2, 1), (1, 2)):
            yield Tiling(1, 128, across=across, down=down, split=split, swap=swap)
            yield Tiling(1, 64, across=across, down=down, split=split, swap=swap)
    yield Tiling(1, 64, swap=swap)
    yield Tiling(1, 64, consumers=1, swap=swap)
    yield Tiling(1, 128, consumers=1, swap=swap)


def _filled(tiling: Tiling) -> Tiling:
    """With as many stages as there is room for."""
    return replace(
        tiling, stages=min(_MOST_STAGES, (SHARED_LIMIT - tiling.fixed_bytes) // tiling.stage_bytes)
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


# --- how long a tiling is likely to take, in cycles of a multiprocessor -------------------------------------
# The numbers are those with which what was measured on an H200, of all tilings of 22 sizes, is ordered best.

_MULTIPLIES = 2048
"""16-bit multiplications of a multiprocessor in a cycle."""
_LEAST_MMA = 20
"""Cycles that an MMA of 64 rows takes at least, however few its columns."""
_CACHE_BYTES = 87
_MEMORY_BYTES = 11
_MOST_MEMORY_BYTES = 40
"""Bytes in a cycle: that a multiprocessor gets from the last cache, that each gets from memory when all ask,
and when few do."""
_LATENCY = 2400
"""Cycles between asking for a ring of stages and having it, while memory is busy."""
_SIGNALS = 45
_SIGNALS_DOWN = 18
"""Cycles of a stage in which nothing is multiplied, and more of them where blocks share what runs along the
rows."""
_START = 8600
_EXCHANGE = 2450
_ALTERNATING = 0.03
"""Part of finishing that is not hidden where groups alternate."""
_BESIDE = 0.14
"""Part of the shorter of two things at a time that is not hidden behind the longer."""
_ALONE = 1.4
_PARTED = 1.25
_FINISHED = 14
"""Results finished in a cycle."""


def cycles(kernel: Kernel, config: Config, target: Target) -> float:
    """Cycles that a configuration of a kernel is likely to take."""
    return estimate(_accepted(kernel), Tiling.of(config), target)


def estimate(problem: Problem, tiling: Tiling, target: Target) -> float:
    """Cycles that a tiling is likely to take."""
    batch, rows, columns, depth = problem.shape
    if tiling.swap:
        rows, columns = columns, rows
    size = problem.left.dtype.itemsize
    clusters = -(-rows // (tiling.taken * tiling.across)) * -(-columns // (tiling.columns * tiling.down))
    blocks = clusters * batch * tiling.cluster
    room = target.multiprocessors * tiling.resident
    if tiling.cluster > 2:
        # a cluster does not cross groups of 16 or 18 multiprocessors
        room = room * 9 // 10
    waves = -(-blocks // (room // tiling.cluster * tiling.cluster))
    beside = min(tiling.resident, -(-blocks // target.multiprocessors))
    stages = -(-depth * size // 128) / tiling.split
    # groups alternate only where a block has several tiles
    alternate = tiling.pingpong and waves > 1
    per_mma = max(64 * tiling.columns * 16 / _MULTIPLIES, _LEAST_MMA)
    signals = (_SIGNALS + (_SIGNALS_DOWN if tiling.down > 1 else 0)) / (4 if alternate else 1)
    multiplying = stages * (4 * (tiling.rows // 64) * per_mma + signals)
    if tiling.pingpong and problem.promotes:
        multiplying *= _ALONE  # nobody multiplies while a group takes its sums out
    if tiling.accumulator_splits(problem) > 1:
        multiplying *= _PARTED
    fed = stages * 128 * (tiling.taken / tiling.down + tiling.columns / tiling.across) / _CACHE_BYTES
    finish = tiling.taken * tiling.columns / _FINISHED / tiling.split
    each = _together(multiplying, fed) * beside + finish * (_ALTERNATING if alternate else 1.0)
    moved = batch * (rows * depth + columns * depth) * size + 2 * batch * rows * columns
    busiest = moved / blocks * waves * beside
    streamed = max(moved / (_MEMORY_BYTES * target.multiprocessors), busiest / _MOST_MEMORY_BYTES)
    waited = waves * stages / tiling.stages * _LATENCY
    # blocks that split the depth do not stay for another tile
    starts = _START * waves + _EXCHANGE if tiling.split > 1 else _START
    slower = 1.01 if tiling.cluster > 1 else 1.0
    slower *= 1.02 if vector_of(problem).along_rows != tiling.swap else 1.0
    return slower * _together(waves * each, math.hypot(streamed, waited)) + starts + finish


def _together(one: float, other: float) -> float:
    """Two things at a time take as long as the longer, and a little for the shorter."""
    return max(one, other) + _BESIDE * min(one, other)
