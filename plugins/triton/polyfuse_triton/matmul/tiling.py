"""The choice of a matmul's tiles: candidates, ranked by an estimate of their time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse_triton.matmul.few_rows import streams, tile_of, wide_tile
from polyfuse_triton.matmul.plan import Matmul, MatmulPlan
from polyfuse_triton.target import Target
from polyfuse_triton.tiling.plan import power_of_two

_SIDES = (16, 32, 64, 128, 256)
_DEPTH_BYTES = (32, 64, 128, 256)
_GOOD_DEPTH = 128
"""Bytes of depth that a tile should have: as much as shared memory is arranged in."""
_ACCUMULATOR = 128
"""Most results that a thread holds."""
_FEW = 1024
"""Results of a tile that few warps can hold."""
_REGISTERS = 248
"""Registers of a thread."""
_EPILOGUE = 8
"""Statements after the matmul that need registers of their own."""
_SCATTERED = 32
"""Most elements of an operand that a thread loads in a turn, each by an address of its own."""
_CANDIDATES = 12
_RESOLUTION = 0.03
"""Parts by which estimates have to differ."""
_STAGES_OF_TWO = 4
"""Of a program beside another one: more ask for no more than memory delivers."""
_SIDE_OF_MANY = 64
"""Columns of a weight of whole bytes in a tile where there are more than 16 rows."""
_STAGES_OF_BYTES = 3
"""Of such a tile, where there are more programs than multiprocessors."""
_WAYS = 3
"""Of these, at most so many have equal sides."""
_GROUP = 8
_RESERVED = 2048
"""Shared memory that is not the operands'."""
_CLOCK = 1.7e9
_LATENCY = 0.8e-6
"""Seconds from asking memory to the answer."""
_DELIVERED = 27e9
"""Bytes that memory gives each multiprocessor in a second."""
_ON_THE_WAY = 96 << 10
"""Bytes that a multiprocessor should have asked for to get as many."""
_STEP = 25e-9
"""Seconds that a turn of the loop costs besides its work."""
_LAUNCH = 2e-6
"""Seconds in which a program begins and ends."""


def prefers_sums(found: Matmul) -> bool:
    """Whether ordinary loops may be as fast: with one row or column no value is used twice, and with
    little depth there is little to multiply.
    """
    _, rows, columns, depth = found.shape
    if found.narrow is not None and streams(found.contraction):
        # a number is converted once, and by pairs
        return False
    return min(rows, columns) == 1 or depth < found.shortest_depth // 2


def best_plans(found: Matmul, target: Target) -> tuple[MatmulPlan, ...]:
    """Plans worth a try, the one that is expected to be the fastest first."""
    model = _Model(found, target)

    def rank(plan: MatmulPlan) -> tuple[float, ...]:
        # the estimate does not tell apart what differs by little
        coarse = round(math.log(max(model.seconds(plan), 1e-9)) / _RESOLUTION)
        good = _GOOD_DEPTH * (1 if min(plan.m, plan.n) >= 64 else 2)
        return coarse, abs(plan.k * found.itemsize - good), abs(plan.warps - 4), -plan.stages

    chosen = list(_streaming(found, target))
    for plan in sorted(_all(found, target), key=rank):
        # of each size of tile, a few ways to run it
        if plan in chosen:
            continue
        alike = [p for p in chosen if (p.m, p.n) == (plan.m, plan.n)]
        if len(alike) < _WAYS and sum(p.warps == plan.warps for p in alike) < _WAYS - 1:
            chosen.append(plan)
        if len(chosen) == _CANDIDATES:
            break
    return tuple(chosen)


def _streaming(found: Matmul, target: Target) -> Iterator[MatmulPlan]:
    """What reads a weight at the memory's rate, as measured."""
    if streams(found.contraction) and found.shape[1] >= found.shape[2]:
        m, n, k, warps, stages = tile_of(found.contraction)
        wide = wide_tile(found.contraction, target)
        if wide is not None:
            m, k, warps, stages = wide
        plan = MatmulPlan(m, max(n, target.columns), k, 1, warps, stages)
        batch, rows, columns, _ = found.shape
        is_crowded = batch * -(-rows // m) * -(-columns // plan.n) > target.multiprocessors
        if found.narrow is not None:
            if is_crowded and found.numbers == 1 and m == _SIDE_OF_MANY:
                plan = replace(plan, stages=min(stages, _STAGES_OF_BYTES))
        elif is_crowded:
            plan = _two_at_a_time(found, target, plan)
        elif found.beside is not None:
            plan = _fitting(found, plan, target.shared_bytes)
        if is_possible(found, target, plan):
            yield plan


def _two_at_a_time(found: Matmul, target: Target, plan: MatmulPlan) -> MatmulPlan:
    """A plan of more programs than there are multiprocessors, in stages that leave room for two of them: the
    second ones would begin when the first have ended.
    """
    shorter = replace(plan, k=plan.k // found.weights, stages=min(plan.stages, _STAGES_OF_TWO))
    return _fitting(found, shorter, target.shared_bytes // 2)


def _fitting(found: Matmul, plan: MatmulPlan, most: int) -> MatmulPlan:
    """A plan with as many of its stages as have room in some bytes of shared memory."""
    while plan.stages > 2 and shared_bytes(found, plan) > most:
        plan = replace(plan, stages=plan.stages - 1)
    return plan


def plan_seconds(found: Matmul, target: Target, plan: MatmulPlan) -> float:
    """A guess of how long a plan takes."""
    return _Model(found, target).seconds(plan)


def around(plan: MatmulPlan) -> Iterator[MatmulPlan]:
    """Plans that differ from one in one thing."""
    for name in ("m", "n", "k"):
        value = getattr(plan, name)
        yield from (replace(plan, **{name: other}) for other in (value * 2, value // 2))
    yield from (replace(plan, warps=warps) for warps in (4, 8) if warps != plan.warps)
    yield from (replace(plan, stages=plan.stages + step) for step in (1, -1) if plan.stages + step > 1)
    yield from (replace(plan, group=group) for group in (1, 4, 8, 16) if group != plan.group)


def is_possible(found: Matmul, target: Target, plan: MatmulPlan) -> bool:
    """Whether a plan can be built, as far as that is known beforehand."""
    least = target.columns if found.narrow is not None and found.narrow.joined else 16
    if plan.m < 16 or plan.n < least or max(plan.m, plan.n, plan.k) > 256 or plan.k < found.shortest_depth:
        return False
    threads = 32 * plan.warps
    held = found.weights * plan.m * plan.n // threads
    if held > _most_held(found) or held < 4:
        return False
    if found.narrow is not None and (found.narrow.longest % plan.k or found.narrow.transposed % plan.n):
        return False
    sides = ((found.contraction.left, plan.m), (found.contraction.right, plan.n))
    if found.narrow is None and any(
        operand.plain is None and side * plan.k > _SCATTERED * threads for operand, side in sides
    ):
        return False
    if _registers(found, plan) > _REGISTERS:
        return False
    return shared_bytes(found, plan) <= target.shared_bytes


def _registers(found: Matmul, plan: MatmulPlan) -> int:
    """An estimate of a thread's registers: results, and where operands are loaded from."""
    threads = 32 * plan.warps
    sides = found.weights * plan.m
    held = sides * plan.n // threads * max(4, found.contraction.dtype.itemsize) // 4
    if found.contraction.left.dtype.is_eight_bit_float:
        # short sums are added to the long ones
        held = held * 3 // 2
    if len(found.contraction.epilogue) > _EPILOGUE:
        held = held * 5 // 4
    copies = (sides + plan.n) * plan.k * found.itemsize // (16 * threads)
    return held + copies + 40


def _all(found: Matmul, target: Target) -> Iterator[MatmulPlan]:
    """Every plan that makes sense for the sizes."""
    _, rows, columns, depth = found.shape
    most = [power_of_two(max(16, size)) for size in (rows, columns)]
    deepest = max(found.shortest_depth, power_of_two(depth))
    # where few iterations are made, shorter ones overlap
    least = min(
        deepest, _GOOD_DEPTH // found.itemsize // (2 if depth * found.itemsize <= 2 * _GOOD_DEPTH else 1)
    )
    depths = [k for k in (size // found.itemsize for size in _DEPTH_BYTES) if least <= k <= deepest]
    for m in (side for side in _SIDES if side <= most[0]):
        for n in (side for side in _SIDES if side <= most[1]):
            for k in depths:
                if k * found.itemsize > _GOOD_DEPTH and min(m, n) > 64:
                    continue
                for warps in (2, 4, 8) if m * n <= _FEW else (4, 8):
                    for stages in (2, 3, 4, 5):
                        if (stages - 1) * k >= 2 * deepest:
                            continue
                        plan = MatmulPlan(m, n, k, _GROUP, warps, stages)
                        if is_possible(found, target, plan):
                            yield plan


def _most_held(found: Matmul) -> int:
    """Most results of a thread."""
    if found.is_exact:
        return 32
    return _ACCUMULATOR * 4 // max(4, found.contraction.dtype.itemsize)


def shared_bytes(found: Matmul, plan: MatmulPlan) -> int:
    """Bytes of shared memory that a kernel takes, at most."""
    return _shared(found, plan) + _RESERVED


def _shared(found: Matmul, plan: MatmulPlan) -> int:
    """Bytes of shared memory that the operands of all stages take."""
    if found.narrow is None:
        return plan.stages * (found.weights * plan.m + plan.n) * plan.k * found.itemsize
    # bytes on one side, and what they are multiplied with on the other; both once more as they are multiplied
    few, many = (plan.n, plan.m) if found.narrow.is_left else (plan.m, plan.n)
    wide = few * plan.k * found.numbers * found.itemsize
    if found.narrow.joined:
        # bytes become numbers in registers
        return plan.stages * (many * (plan.k + 4 * found.narrow.groups(plan.k)) + wide)
    return plan.stages * (many * plan.k + wide) + wide + many * plan.k * found.itemsize


@dataclass(frozen=True)
class _Model:
    """An estimate of a plan's time from what a multiprocessor computes and what memory delivers."""

    found: Matmul
    target: Target

    def seconds(self, plan: MatmulPlan) -> float:
        """Expected duration."""
        found, target = self.found, self.target
        batch, rows, columns, depth = found.shape
        tiles = batch * -(-rows // plan.m) * -(-columns // plan.n)
        iterations = -(-depth // plan.k)
        loaded = (plan.m + plan.n) * plan.k * found.itemsize
        resident = self._resident(plan)
        rounds = -(-tiles // target.multiprocessors)
        together = min(resident, rounds)
        compute = 2.0 * plan.m * plan.n * plan.k * iterations / (self._rate() * self._efficiency(plan))
        inflight = together * max(1, plan.stages - 1) * loaded
        delivered = min(inflight / _LATENCY, 64.0 * _CLOCK)
        memory = iterations * loaded / delivered
        step = iterations * _STEP / together
        on_one = rounds * (max(compute, memory) + step)
        unique = batch * (rows * depth + depth * columns) * found.itemsize
        stored = batch * rows * columns * max(2, found.itemsize)
        # the last cache alone keeps up with few bytes on the way
        slow = max(1.0, _ON_THE_WAY / inflight) ** 0.5
        from_device = (unique * slow + stored) / (_DELIVERED * target.multiprocessors)
        start = -(-rounds // resident) * _LAUNCH
        return max(on_one, from_device) + start

    def _resident(self, plan: MatmulPlan) -> int:
        """Programs of one multiprocessor at a time."""
        by_registers = 65536 // (_registers(self.found, plan) * 32 * plan.warps)
        by_shared = self.target.shared_bytes // (_shared(self.found, plan) + _RESERVED)
        return max(1, min(by_registers, by_shared, 64 // plan.warps))

    def _rate(self) -> float:
        """Operations of one multiprocessor in a second, at best."""
        found = self.found
        if found.is_exact:
            return 256 * _CLOCK
        if found.itemsize == 8:
            return 256 * _CLOCK
        newer = self.target.arch >= 90
        return (4096 if newer else 2048) * _CLOCK * 2 / found.itemsize

    def _efficiency(self, plan: MatmulPlan) -> float:
        """How much of that a tile gets: little of small ones, whose operands are read again and again."""
        shared = plan.m * plan.n / (plan.m + plan.n)
        good = shared / (shared + 24)
        if plan.stages < 3:
            good *= 0.85
        if plan.k * self.found.itemsize < _GOOD_DEPTH:
            good *= 0.8
        if self.target.arch >= 90 and plan.m < 64:
            good *= 0.5
        return good
