"""One launch of a kernel beside the interpreter, on copies of the same operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.checking.bounds import BoundedEvaluator, Ledger
from polyfuse.checking.compare import Mismatch, agree, mismatch, same_bits
from polyfuse.checking.operands import Copied, Layout, Span, copied, put_back, raw
from polyfuse.ir.interpreter.kernel import begin_stores, bind_operands, run_kernel, run_part
from polyfuse.ir.interpreter.space import Space, spaces
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Store

_PART = 1 << 18
"""Points that are interpreted together: small enough that their values and bounds stay in caches."""
_BUDGET = 1 << 22
"""Points that are interpreted at most: of a larger kernel, parts from everywhere."""
_WHOLE = 1 << 27
"""Points up to which the interpreter may compute a whole kernel, where its result is needed."""


@dataclass(frozen=True)
class CheckResult:
    """What came out of a check.

    Attributes:
        problem: how the kernel differs, in words; empty where it agrees.
        unknown: why it could not be checked; empty where it was.
        worst: the element that is farthest off, if it is one.
        elements: how many were compared.
        found: operands as the kernel left them.
        whole: whether the interpreter went over the whole kernel.
    """

    problem: str = ""
    unknown: str = ""
    worst: Mismatch | None = None
    elements: int = 0
    found: Copied | None = None
    whole: bool = True


def check_launch(
    kernel: Kernel,
    launch: Callable[..., Any],
    operands: Sequence[object],
    layout: Layout,
    synchronize: Callable[[], None] = lambda: None,
) -> CheckResult:
    """Launch a kernel on copies of operands, and compare what it makes with the interpreter's.

    Raises:
        LaunchFailed: the launch raised. The operands are as they were.
    """
    truth = copied(operands, layout)
    try:
        ledger, whole = _interpreted(kernel, truth, layout)
    except (IRError, IndexError, NotImplementedError, _TooLargeError) as error:
        return CheckResult(unknown=f"{type(error).__name__}: {error}")
    found = copied(operands, layout)
    _spoil_results(kernel, found, truth, layout, ledger)
    try:
        launch(*found.operands)
        synchronize()
    except Exception as error:
        raise LaunchFailed(error) from error
    if not all(block.is_intact() for block in found.blocks):
        return CheckResult("it wrote beside its buffers", found=found)
    return _compared(kernel, operands, found, truth, layout, ledger, whole)


def _spoil_results(kernel: Kernel, found: Copied, truth: Copied, layout: Layout, ledger: Ledger) -> None:
    """Make sure that what a kernel must write is wrong before: memory that is used again often holds the very
    numbers that are computed once more, and one that leaves elements out would seem right.
    """
    held = [
        p for arg, p in zip(kernel.args, layout.spans, strict=True) if p is not None and arg.kind != "out"
    ]
    for arg, mine, right, span in zip(kernel.args, found.operands, truth.operands, layout.spans, strict=True):
        if span is None or arg.kind != "out" or any(_overlap(span, other) for other in held):
            continue
        if isinstance(mine, Tensor) and isinstance(right, Tensor):
            known = ledger.written[arg.name] & (ledger.errors[arg.name] != torch.inf)
            wanted, memory = (raw(t, span.nbytes).reshape(-1, t.element_size()) for t in (right, mine))
            memory.copy_(torch.where(known.unsqueeze(1), ~wanted, memory))


def _overlap(one: Span, other: Span) -> bool:
    apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
    return one.block == other.block and not apart


def right_results(kernel: Kernel, operands: Sequence[object], layout: Layout) -> bool:
    """Let the interpreter compute a kernel on its operands, unless it is so large that this takes minutes."""
    _, storages = bind_operands(kernel, operands)
    device = next((s.device for s in storages.values()), torch.device("cpu"))
    points, given = 0, dict(layout.sizes)
    for item, names in _parts(kernel):
        sizes = {name: given[at] for name, at in names.items() if at in given}
        points += sum(map(_size, spaces(item.axes, item.raxes, sizes, device, _PART)))
    if points > _WHOLE:
        return False
    # on copies: a failure must not leave operands half written
    made = copied(operands, layout)
    run_kernel(kernel, made.operands)
    put_back(made, layout, operands, kernel)
    return True


def _parts(kernel: Kernel) -> list[tuple[Kernel, dict[str, str]]]:
    """What a kernel consists of, with the names that its arguments have in the whole."""
    if not kernel.parts:
        return [(kernel, {arg.name: arg.name for arg in kernel.args})]
    return [
        (part.kernel, {arg.name: name for arg, name in zip(part.kernel.args, part.args, strict=True)})
        for part in kernel.parts
    ]


class LaunchFailed(Exception):
    """A launch raised: `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _TooLargeError(Exception):
    """A kernel has too many points, all of which one element may depend on."""


def _interpreted(kernel: Kernel, truth: Copied, layout: Layout) -> tuple[Ledger, bool]:
    sizes, storages = bind_operands(kernel, truth.operands)
    ledger = _ledger(kernel, truth, layout)
    whole = True
    for part, names in _parts(kernel):
        own = {name: storages[at] for name, at in names.items() if at in storages}
        numbers = {name: sizes[at] for name, at in names.items() if at in sizes}
        bounds = {name: ledger.errors[at] for name, at in names.items() if at in ledger.errors}
        marks = {name: ledger.written[at] for name, at in names.items() if at in ledger.written}
        whole &= _interpret(part, numbers, own, Ledger(bounds, marks))
    return ledger, whole


def _interpret(
    kernel: Kernel, sizes: Mapping[str, int], storages: Mapping[str, Tensor], ledger: Ledger
) -> bool:
    """Interpret a kernel and its bounds; False where only some of its points were."""
    device = next((s.device for s in storages.values()), torch.device("cpu"))
    parts = list(spaces(kernel.axes, kernel.raxes, sizes, device, _PART))
    chosen = _chosen(parts)
    if len(chosen) < len(parts) and _combines(kernel):
        raise _TooLargeError("it combines the values of more points than are interpreted")
    begin_stores(kernel, storages)
    evaluator = partial(BoundedEvaluator, ledger, kernel)
    with torch.no_grad():
        for part in chosen:
            run_part(kernel, part, sizes, storages, evaluator)
        ledger.close(storages)
    return len(chosen) == len(parts)


def _size(part: Space) -> int:
    return math.prod(part.lengths)


def _chosen(parts: Sequence[Space]) -> list[Space]:
    """All parts; of many, the first and the last one and others from everywhere."""
    sizes = [_size(part) for part in parts]
    if sum(sizes) <= _BUDGET or len(parts) < 3:
        return list(parts)
    count = max(3, min(len(parts), _BUDGET // max(1, sizes[0])))
    # a step without a common divisor with powers of two, so that it falls on every column
    picked = {0: None, len(parts) - 1: None}
    for number in range(1, count - 1):
        picked[(number * len(parts) // count + number * 7) % len(parts)] = None
    return [parts[number] for number in sorted(picked)]


def _combines(kernel: Kernel) -> bool:
    return any(
        isinstance(stmt, Store) and stmt.mode != "set" for section in kernel.sections for stmt in section.body
    )


def _ledger(kernel: Kernel, truth: Copied, layout: Layout) -> Ledger:
    """Bounds and marks for each block that is written to, as each argument sees them: what is only read is
    exact, and as large as anything that memory holds.
    """
    changed = _changed(kernel, layout)
    unit: dict[int, int] = {}
    for arg, span in zip(kernel.args, layout.spans, strict=True):
        if span is not None:
            size = arg.dtype.itemsize
            while span.offset % size:
                size //= 2
            unit[span.block] = min(size, unit.get(span.block, size))
    errors: dict[str, Tensor] = {}
    written: dict[str, Tensor] = {}
    held: dict[int, tuple[Tensor, Tensor]] = {}
    for arg, span in zip(kernel.args, layout.spans, strict=True):
        if span is None or span.block not in changed:
            continue
        step = unit[span.block]
        if span.block not in held:
            block = truth.blocks[span.block]
            count = block.nbytes // step
            device = block.memory.device
            held[span.block] = (
                torch.zeros(count, dtype=torch.float64, device=device),
                torch.zeros(count, dtype=torch.bool, device=device),
            )
        stride = arg.dtype.itemsize // step
        length = span.nbytes // arg.dtype.itemsize
        views = [t.as_strided((length,), (stride,), span.offset // step) for t in held[span.block]]
        errors[arg.name], written[arg.name] = views
    return Ledger(errors, written)


def _compared(
    kernel: Kernel,
    operands: Sequence[object],
    found: Copied,
    truth: Copied,
    layout: Layout,
    ledger: Ledger,
    whole: bool,
) -> CheckResult:
    changed = _changed(kernel, layout)
    worst: Mismatch | None = None
    elements = 0
    for arg, mine, right, given, span in zip(
        kernel.args, found.operands, truth.operands, operands, layout.spans, strict=True
    ):
        if span is None or not isinstance(mine, Tensor) or not isinstance(right, Tensor):
            continue
        if arg.kind == "in":
            if span.block not in changed and not torch.equal(raw(mine, span.nbytes), raw(right, span.nbytes)):
                return CheckResult(f"it changed its input {arg.name}", found=found, whole=whole)
            continue
        dtype = arg.dtype.torch
        got, want = (raw(t, span.nbytes).view(dtype) for t in (mine, right))
        written, error = ledger.written[arg.name], ledger.errors[arg.name]
        good = agree(got, want, error, error == 0) | ~written
        if whole:
            # what the interpreter stores nothing to, nobody may store to
            good &= written | same_bits(got, want) | (error == torch.inf)
        count = int(written.sum())
        elements += count
        item = mismatch(arg.name, got, want, error, good, count)
        if item is not None and (worst is None or item.count > worst.count):
            worst = replace(item, index=_index(item.index[0], given))
    problem = "" if worst is None else str(worst)
    return CheckResult(problem, "", worst, elements, found, whole)


def _changed(kernel: Kernel, layout: Layout) -> set[int]:
    """Blocks with memory that the kernel may write."""
    return {
        span.block
        for arg, span in zip(kernel.args, layout.spans, strict=True)
        if span is not None and arg.kind != "in"
    }


def _index(at: int, given: object) -> tuple[int, ...]:
    """The index, in the operand as a tensor, of an element in memory; its offset where it has none there."""
    if not isinstance(given, Tensor):
        return (at,)
    rest, index = at, [0] * given.dim()
    for dim in sorted(range(given.dim()), key=lambda d: -given.stride(d)):
        if given.stride(dim) > 0:
            index[dim] = min(rest // given.stride(dim), given.shape[dim] - 1)
            rest -= index[dim] * given.stride(dim)
    return tuple(index) if rest == 0 else (at,)
