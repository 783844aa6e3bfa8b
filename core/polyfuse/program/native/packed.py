"""Weights that kernels read packed, in a program that runs without Python: inputs, which are packed when a
model is created, and not results of calls that look at each weight again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyfuse.program.steps import ExternStep, Program, ProgramInput, Ref, Step
from polyfuse.runtime.frozen import ONCE, TOGETHER

_PACK = "aten.as_strided_copy.default"


@dataclass(frozen=True)
class PackedWeight:
    """What an input of a program is a contiguous copy of.

    Attributes:
        source: position of the weight among the inputs.
        size: of the copy.
        stride: of its elements in the weight, from the first one on.
    """

    source: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def with_packed_inputs(program: Program) -> tuple[Program, tuple[PackedWeight, ...]]:
    """The program without the calls that pack weights, whose results are its last inputs, and what these are
    made of. Calls for anything but weights that nobody writes to stay.
    """
    positions = {item.name: i for i, item in enumerate(program.inputs)}
    fixed = {item.name for item in program.inputs if item.static and not item.mutated}
    steps: list[Step] = []
    inputs: list[ProgramInput] = []
    packed: list[PackedWeight] = []
    for step in program.steps:
        rows = _packed(step) if isinstance(step, ExternStep) else None
        if rows is None or any(source not in fixed for source, *_ in rows):
            steps.append(step)
            continue
        for source, result, size, stride in rows:
            weight = program.inputs[positions[source]]
            packed.append(PackedWeight(positions[source], size, stride))
            inputs.append(replace(weight, name=result, size=size, stride=(), label=""))
    return replace(program, inputs=(*program.inputs, *inputs), steps=tuple(steps)), tuple(packed)


_Row = tuple[str, str, tuple[int, ...], tuple[int, ...]]


def _packed(step: ExternStep) -> list[_Row] | None:
    """The weight, the result, its size and the strides in the weight, for each packed one; None: it is
    another call.
    """
    prefix = next((p for p in ONCE if step.op.startswith(p)), None)
    if prefix is None or step.kwargs:
        return None
    name = step.op.removeprefix(prefix)
    together = name.startswith(TOGETHER)
    if name.removeprefix(TOGETHER) != _PACK:
        return None
    weights, plain = step.args if together else ((step.args[0],), (step.args[1:],))
    rows: list[_Row] = []
    for weight, numbers, result in zip(weights, plain, step.outputs, strict=True):
        if not isinstance(weight, Ref) or len(numbers) != 2 or not all(map(_is_fixed, numbers)):
            return None
        rows.append((weight.name, result, tuple(numbers[0]), tuple(numbers[1])))
    return rows


def _is_fixed(numbers: Any) -> bool:
    return all(isinstance(n, int) for n in numbers)
