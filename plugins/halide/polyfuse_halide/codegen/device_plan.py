"""How a kernel is divided among the blocks and threads of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Scan
from polyfuse.kit import KernelFacts
from polyfuse.plugin import Config
from polyfuse.symbolic import substitute
from polyfuse_halide.schedules.plan import access_kind, example_sizes, transposed_axis

DEVICE_CHOICES = ("lanes", "points", "each")
"""What a configuration may say of a schedule for a device."""

_BLOCK = 256
"""Threads of a block, where nothing asks for others."""
_MOST = 1024
_SHORT = 16
"""Steps of a loop that one thread walks alone."""
_LONG_AXIS = 4096
"""Points of a last axis that are worth blocks of their own."""


@dataclass(frozen=True)
class DevicePlan:
    """A schedule; its fields are those of `polyfuse_halide.library.device.pipeline.Grid`."""

    lanes: int = 1
    points: int = _BLOCK
    across: bool = False
    each: int = 1
    vector: bool = False
    flat: bool = True
    transpose: int = -1

    def text(self) -> str:
        """The schedule as text of a generated program."""
        return f"Grid({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__dataclass_fields__)})"

    def changed(self, values: Mapping[str, int]) -> DevicePlan:
        """The schedule with other choices; what is not known to be aligned is not moved in wider vectors."""
        given = {name: value for name, value in values.items() if name in DEVICE_CHOICES}
        made = replace(self, **given)  # type: ignore[arg-type]
        return replace(made, vector=self.vector and 1 < made.each <= self.each)


def choose_device_plan(kernel: Kernel, multiprocessors: int, config: Config | None) -> DevicePlan:
    """The schedule of a kernel for a device of so many multiprocessors; `config` overrules choices."""
    facts = KernelFacts.of(kernel)
    points, steps = (prod(example_sizes(facts, axes)) for axes in (facts.axes, facts.raxes))
    if not facts.raxes:
        plan = _pointwise(facts, points, multiprocessors)
    else:
        plan = _looped(facts, points, steps, access_kind(facts) == "columns", multiprocessors)
    return plan.changed(dict(config.values)) if config and config.values else plan


def _pointwise(facts: KernelFacts, points: int, multiprocessors: int) -> DevicePlan:
    kernel = facts.kernel
    transpose = transposed_axis(facts)
    if transpose >= 0:
        return DevicePlan(transpose=transpose)
    enough = points >= 8 * _BLOCK * multiprocessors
    last = kernel.sizes[-1]
    even = isinstance(last, int) and last % 4 == 0
    flat = len(facts.axes) == 1 or facts.hints[facts.axes[-1]] < _LONG_AXIS
    each = 4
    if isinstance(last, int) and last % 8 == 0 and _wide(kernel) <= 2 and _aligned(facts, 8):
        each = 8
    return DevicePlan(each=each if enough else 1, vector=enough and even and _aligned(facts, each), flat=flat)


def _wide(kernel: Kernel) -> int:
    """Bytes of an element of the largest tensors."""
    sizes = [(a.numel, a.dtype.itemsize) for a in kernel.args if isinstance(a.numel, int)]
    most = max((numel for numel, _ in sizes), default=0)
    return max((width for numel, width in sizes if numel == most), default=4)


def _aligned(facts: KernelFacts, count: int) -> bool:
    """Whether so many neighbours may be moved as one: for Halide every tensor begins at such an address."""
    starts = (
        substitute(access.index, dict.fromkeys(facts.axes, 0))
        for access in facts.all_accesses
        if access.is_store
    )
    return all(a.aligned for a in facts.kernel.args if a.kind != "size") and all(
        isinstance(start, int) and start % count == 0 for start in starts
    )


def _looped(facts: KernelFacts, points: int, steps: int, across: bool, multiprocessors: int) -> DevicePlan:
    last = facts.hints[facts.axes[-1]]
    scans = any(isinstance(stmt, Scan) for stmt in facts.statements)
    static = all(isinstance(size, int) for size in facts.kernel.rsizes)
    if across:
        wide = 32 if last > 16 else 16
        lanes = 1
        while lanes * wide < _MOST and 2 * lanes * 4 <= steps and points * lanes < 2048 * multiprocessors:
            lanes *= 2
        if scans or lanes > 1:
            return DevicePlan(lanes=max(lanes, 2 if scans else 1), points=wide, across=True)
        return DevicePlan(lanes=1, points=128 if points >= 128 * multiprocessors else 64, across=True)
    if steps <= _SHORT and static and not scans:
        return DevicePlan(lanes=1, points=128)
    lanes = 32
    most = _MOST if points < 2 * multiprocessors else 512 if steps >= 8192 else _BLOCK
    while lanes < most and lanes * 8 <= steps:
        lanes *= 2
    rows = 1
    while lanes * rows < 128 and rows < last and rows < 4 and points >= 8 * multiprocessors:
        rows *= 2
    return DevicePlan(lanes=lanes, points=rows)
