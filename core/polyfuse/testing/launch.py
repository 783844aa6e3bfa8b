"""Running one case: the backend's kernel beside the interpreter's, on equal operands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfuse.checking.compare import agree, mismatch
from polyfuse.checking.operands import Copied, Layout, copied, layout_of, raw
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.plugin import Backend, Launchable
from polyfuse.testing.cases.case import Case, Operand, Operands, Part

Faults = dict[int, str]
"""By position of a part: what is wrong with it."""


def check(
    case: Case,
    launchable: Launchable,
    backend: Backend,
    device: str = "cpu",
    pairs: Sequence[tuple[int, int]] = (),
) -> Faults:
    """Run every launch of a case and compare; parts that are right are not in the answer.

    Args:
        pairs: positions of outputs, each with that of the input whose memory it is given.
    """
    faults: Faults = {}
    for number, run in enumerate(case.runs):
        truth, fresh = _begun(run(), pairs), run()
        moved = [_on(device, operand) for operand in fresh]
        for output, source in pairs:
            moved[output] = moved[source]
        layout = layout_of(case.kernel, moved)
        assert layout is not None, f"operands of {case.kernel.name} are smaller than it declares"
        given = copied(moved, layout)
        run_kernel(case.kernel, truth)
        try:
            launchable(*given.operands)
            backend.synchronize()
        except Exception as error:
            return {k: f"the launch raised {type(error).__name__}: {error}" for k in range(len(case.parts))}
        for position, part in enumerate(case.parts):
            fault = "" if position in faults else _compare(case, part, given.operands, truth, fresh)
            if fault:
                sizes = [v for v in fresh if isinstance(v, int)]
                where = f", sizes {sizes}" if sizes else f", launch {number}" if len(case.runs) > 1 else ""
                faults[position] = fault + where
        damage = _damage(case, given, layout, fresh, frozenset(source for _, source in pairs))
        if damage:
            faults.setdefault(0, damage)
    return faults


def _begun(operands: Operands, pairs: Sequence[tuple[int, int]]) -> Operands:
    """Operands apart, with outputs that hold what they hold where they lie over an input: what a kernel does
    not write stays.
    """
    found = list(operands)
    for output, source in pairs:
        held = found[source]
        assert isinstance(held, Tensor)
        found[output] = held.clone()
    return tuple(found)


def _on(device: str, operand: Operand) -> Operand:
    """An operand on a device, at the same offset in its storage."""
    if not isinstance(operand, Tensor):
        return operand
    storage = raw(operand.as_strided((0,), (1,), 0), operand.untyped_storage().nbytes()).to(device)
    moved = torch.empty(0, dtype=operand.dtype, device=device)
    return moved.set_(storage.untyped_storage(), operand.storage_offset(), operand.shape, operand.stride())


def _compare(case: Case, part: Part, given: Operands, truth: Operands, fresh: Operands) -> str:
    found, wanted = given[part.operand], truth[part.operand]
    assert isinstance(found, Tensor) and isinstance(wanted, Tensor)
    found = found.cpu()
    answers = (wanted,) if part.expected is None else (part.expected(fresh), wanted)
    slack = 0.0
    if part.slack is not None and found.dtype.is_floating_point:
        slack = part.slack(fresh).double().nan_to_num(nan=0.0, posinf=0.0).reshape(found.shape)
    allowed = [part.tolerance.allowed(answer) + slack for answer in answers]
    good = torch.zeros(found.shape, dtype=torch.bool)
    for answer, bound in zip(answers, allowed, strict=True):
        good |= agree(found, answer, bound, part.tolerance.signed_zero)
    if part.valid is not None:
        good |= ~part.valid(fresh).reshape(good.shape)
    worst = mismatch(case.kernel.args[part.operand].name, found, answers[0], allowed[0], good)
    return "" if worst is None else str(worst)


def _damage(case: Case, given: Copied, layout: Layout, fresh: Operands, given_up: frozenset[int]) -> str:
    """Inputs must be as they were, but for those that are given up, and so must the memory around every
    buffer.
    """
    rows = zip(case.kernel.args, given.operands, fresh, layout.spans, strict=True)
    for position, (arg, after, before, span) in enumerate(rows):
        if span is None:
            continue
        if not given.blocks[span.block].is_intact():
            return f"memory beside the buffer {arg.name} was written to"
        if arg.kind == "in" and position not in given_up:
            assert isinstance(after, Tensor) and isinstance(before, Tensor)
            if not torch.equal(raw(after, span.nbytes).cpu(), raw(before, span.nbytes)):
                return f"the input {arg.name} was changed"
    return ""
