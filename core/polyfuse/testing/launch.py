"""Running one case: the backend's kernel beside the interpreter's, on equal operands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.plugin import Backend, Launchable
from polyfuse.testing.cases.case import Case, Operands, Part
from polyfuse.testing.compare import difference

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
        truth = _begun(run(), pairs)
        guards = [_Guarded(o, device) if isinstance(o, Tensor) else None for o in run()]
        for output, source in pairs:
            guards[output] = guards[source]
        given = tuple(o if g is None else g.tensor for o, g in zip(truth, guards, strict=True))
        run_kernel(case.kernel, truth)
        try:
            launchable(*given)
            backend.synchronize()
        except Exception as error:
            return {k: f"the launch raised {type(error).__name__}: {error}" for k in range(len(case.parts))}
        fresh = run()
        for position, part in enumerate(case.parts):
            if position in faults:
                continue
            fault = _compare(part, given, truth, fresh)
            if fault:
                sizes = [v for v in fresh if isinstance(v, int)]
                where = f", sizes {sizes}" if sizes else f", launch {number}" if len(case.runs) > 1 else ""
                faults[position] = fault + where
        spoilt = _spoilt(case, given, fresh, guards, frozenset(source for _, source in pairs))
        if spoilt:
            faults.setdefault(0, spoilt)
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


class _Guarded:
    """A copy of a tensor with known bytes around it, at the same distance from an aligned place."""

    def __init__(self, original: Tensor, device: str) -> None:
        size = original.element_size()
        self.start = _GUARD + original.storage_offset() * size
        self.end = self.start + original.numel() * size
        self.memory = torch.full((self.end + _GUARD,), _PATTERN, dtype=torch.uint8, device=device)
        self.tensor = self.memory[self.start : self.end].view(original.dtype)
        self.tensor.copy_(original)

    def intact(self) -> bool:
        """Whether the bytes around the tensor are as they were."""
        return bool(
            (self.memory[: self.start] == _PATTERN).all() and (self.memory[self.end :] == _PATTERN).all()
        )


_GUARD, _PATTERN = 256, 0xA5


def _compare(part: Part, given: Operands, truth: Operands, fresh: Operands) -> str:
    found, wanted = given[part.operand], truth[part.operand]
    assert isinstance(found, Tensor) and isinstance(wanted, Tensor)
    answers = (wanted,) if part.expected is None else (part.expected(fresh), wanted)
    valid = None if part.valid is None else part.valid(fresh)
    slack = None if part.slack is None else part.slack(fresh)
    return difference(found.cpu(), answers, part.tolerance, valid, slack)


def _spoilt(
    case: Case,
    given: Operands,
    fresh: Operands,
    guards: Sequence[_Guarded | None],
    given_up: frozenset[int],
) -> str:
    """Inputs must be as they were, but for those that are given up, and so must the memory around every
    buffer.
    """
    rows = zip(case.kernel.args, given, fresh, guards, strict=True)
    for position, (arg, after, before, guard) in enumerate(rows):
        if guard is not None and not guard.intact():
            return f"memory beside the buffer {arg.name} was written to"
        if arg.kind != "in" or position in given_up:
            continue
        if isinstance(after, Tensor) and isinstance(before, Tensor):
            if difference(after.cpu(), (before,), _SAME):
                return f"the input {arg.name} was changed"
    return ""


_SAME = Part("", "", "", 0).tolerance
