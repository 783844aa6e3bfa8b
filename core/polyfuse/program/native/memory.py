"""Which tensors of a host program are plain memory in its native form, and when others may go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from polyfuse.plugin.host import Discard, HostStep, OffsetAddress, Quiet, Reserve, Run
from polyfuse.program.partitions import names_in
from polyfuse.program.steps import (
    Allocate,
    BindSymbol,
    ExternStep,
    Free,
    KeepMemory,
    LaunchKernel,
    MakeView,
    Program,
    RaiseFailed,
    Return,
    Reuse,
    Step,
)
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import storage_size

STACK_BYTES = 102_400
"""Most bytes of a program's intermediate values that lie on the stack. Threads have half a megabyte and more.
"""

WORTH_A_PAUSE = 1 << 15
"""Points of kernels one after another from which on other threads of Python may run meanwhile: letting them
takes as long as a few hundred points."""


@dataclass(frozen=True)
class PlainMemory:
    """Which variables are addresses of plain memory.

    Attributes:
        plain: those that are addresses and nothing more.
        owners: those among them whose memory is reserved for them.
        launched: variables that directly called kernels are given.
        itemsizes: bytes of an element, of every variable of which a view may be an address.
        stack_bytes: bytes of all plain memory of known size.
    """

    plain: frozenset[str]
    owners: frozenset[str]
    launched: frozenset[str]
    itemsizes: Mapping[str, int]
    stack_bytes: int


def is_on(name: str, device: str) -> bool:
    """Whether a tensor's device is what a native program computes on: one of a type; empty: the CPU."""
    return name.partition(":")[0] == device if device else device_of(name).is_host


def plan_plain_memory(program: Program, direct: frozenset[str], device: str = "") -> PlainMemory:
    """Decide it, given the kernels that are called directly, and the type of device where all memory is."""
    steps = program.steps
    launched = {
        o
        for s in steps
        if isinstance(s, LaunchKernel) and s.kernel in direct
        for o in s.operands
        if isinstance(o, str)
    }
    made = {s.name for s in steps if isinstance(s, Allocate) and is_on(s.device, device)}
    candidates = made | {s.new for s in steps if isinstance(s, Reuse)}
    candidates |= {s.name for s in steps if isinstance(s, MakeView)}
    referred = {name for step in steps for name in _referred(step, direct)}
    changed = True
    while changed:
        before = len(referred)
        for step in steps:
            if isinstance(step, Reuse):
                if step.new in referred or step.old in referred or step.old not in candidates:
                    referred |= {step.new, step.old}
            elif isinstance(step, MakeView) and step.name in referred:
                referred.add(step.view.buffer)
        changed = len(referred) != before
    plain = frozenset(candidates - referred)
    owners = set(made & plain)
    itemsizes = {i.name: _itemsize(i.dtype) for i in program.inputs if i.kind == "tensor"}
    stack = 0
    for step in steps:
        if isinstance(step, Allocate):
            itemsizes[step.name] = _itemsize(step.dtype)
            size = storage_size(step.size, step.stride)
            if step.name in plain and isinstance(size, int):
                stack += -(-max(1, size * itemsizes[step.name]) // 64) * 64
        elif isinstance(step, Reuse):
            itemsizes[step.new] = itemsizes.get(step.old, 1)
            if step.old in owners:
                owners.add(step.new)
        elif isinstance(step, MakeView):
            width = step.view.dtype.itemsize if step.view.dtype else itemsizes.get(step.view.buffer, 1)
            itemsizes[step.name] = width
    return PlainMemory(plain, frozenset(owners), frozenset(launched), itemsizes, stack)


def quiet_runs(steps: Sequence[HostStep], work: Mapping[int, int]) -> tuple[HostStep, ...]:
    """The steps, with long work that needs nothing of the environment put together.

    Args:
        steps: all, in order.
        work: points of the kernels, by position of their steps.
    """
    found: list[HostStep] = []
    position = 0
    while position < len(steps):
        end = position
        while end < len(steps) and isinstance(steps[end], (Run, Reserve, Discard, OffsetAddress)):
            end += 1
        run = tuple(steps[position:end])
        if sum(work.get(i, 0) for i in range(position, end)) >= WORTH_A_PAUSE:
            found.append(Quiet(run))
        else:
            found += run
        if end < len(steps):
            found.append(steps[end])
        position = end + 1
    return tuple(found)


def _itemsize(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


_MEMORY = (Allocate, KeepMemory, Reuse, MakeView, Free, RaiseFailed)


def _referred(step: Step, direct: frozenset[str]) -> Iterator[str]:
    """Variables that must be tensors for a step's sake."""
    if isinstance(step, LaunchKernel):
        if step.kernel not in direct:
            yield from (o for o in step.operands if isinstance(o, str))
    elif isinstance(step, ExternStep):
        yield from names_in((step.args, tuple(value for _, value in step.kwargs)))
        yield from (name for name in step.outputs if name)
    elif isinstance(step, Return):
        yield from names_in(step.values)
    elif isinstance(step, BindSymbol):
        yield step.read.name
    elif not isinstance(step, _MEMORY) and hasattr(step, "name"):
        yield step.name
