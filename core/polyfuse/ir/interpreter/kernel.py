"""Interpretation of one kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.evaluator import Evaluator
from polyfuse.ir.interpreter.space import Space, spaces
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.statements import Reduce, Scan, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import evaluate

POINTS = 1 << 20
"""Points of an iteration space that are evaluated together."""


def run_kernel(kernel: Kernel, operands: Sequence[Tensor | int]) -> None:
    """Execute a kernel on tensors (or addresses in host memory) and sizes, in the order of its arguments.

    A tensor stands for its pointer: storage offset applied, its own sizes and strides ignored.

    Raises:
        IRError: the kernel breaks a rule, an operand does not fit, or an element outside a buffer is
            accessed.
    """
    if kernel.parts:
        given = {arg.name: operand for arg, operand in zip(kernel.args, operands, strict=True)}
        for part in kernel.parts:
            run_kernel(part.kernel, [given[name] for name in part.args])
        return
    sizes, storages = bind_operands(kernel, operands)
    device = next((s.device for s in storages.values()), torch.device("cpu"))
    if device.type == "meta":  # tensors that have no memory: nothing is read, and nothing is written
        return
    begin_stores(kernel, storages)
    for space in spaces(kernel.axes, kernel.raxes, sizes, device, POINTS):
        run_part(kernel, space, sizes, storages)


def bind_operands(
    kernel: Kernel, operands: Sequence[Tensor | int]
) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The sizes, and the elements of each buffer as they lie in memory, by the names of arguments.

    Raises:
        IRError: there are too few or too many operands.
    """
    if len(operands) != len(kernel.args):
        raise IRError(f"kernel {kernel.name} takes {len(kernel.args)} operands, not {len(operands)}")
    sizes = {
        arg.name: int(value)
        for arg, value in zip(kernel.args, operands, strict=True)
        if arg.kind == "size" and not isinstance(value, Tensor)
    }
    storages: dict[str, Tensor] = {}
    for arg, value in zip(kernel.args, operands, strict=True):
        if arg.kind != "size":
            storages[arg.name] = _storage(kernel, arg, value, sizes)
    return sizes, storages


def begin_stores(kernel: Kernel, storages: Mapping[str, Tensor]) -> None:
    """Fill what stores of `ops.GROUP_MODES` combine with."""
    for stmt in (s for section in kernel.sections for s in section.body):
        if isinstance(stmt, Store) and stmt.buffer in storages:
            semantics.begin_group(storages[stmt.buffer], stmt.mode)


def flat(tensor: Tensor, numel: int, dtype: DType) -> Tensor:
    """`numel` elements from a tensor's first one on, as they lie in memory.

    Raises:
        IRError: the tensor's memory ends before.
    """
    available = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if numel > available:
        raise IRError(f"a buffer of {numel} elements was given only {available}")
    found = tensor.detach().as_strided((numel,), (1,), tensor.storage_offset())
    return found if found.dtype is dtype.torch else found.view(dtype.torch)


def _storage(kernel: Kernel, arg: KernelArg, value: Tensor | int, sizes: Mapping[str, int]) -> Tensor:
    if arg.numel is None:
        raise IRError(f"argument {arg.name} of kernel {kernel.name} has no extent")
    numel = evaluate(arg.numel, sizes)
    if isinstance(value, Tensor):
        if value.element_size() != arg.dtype.itemsize:
            raise IRError(f"argument {arg.name} of kernel {kernel.name} is {arg.dtype}, not {value.dtype}")
        return flat(value, numel, arg.dtype)
    if numel == 0:
        return torch.empty(0, dtype=arg.dtype.torch)
    memory = (ctypes.c_char * (numel * arg.dtype.itemsize)).from_address(int(value))
    return torch.frombuffer(memory, dtype=arg.dtype.torch)


def run_part(
    kernel: Kernel,
    space: Space,
    sizes: Mapping[str, int],
    storages: Mapping[str, Tensor],
    evaluator_of: Callable[..., KernelEvaluator] | None = None,
) -> None:
    """Execute a kernel at a part of its points; `evaluator_of` makes what evaluates its statements."""
    points = space.points()
    lengths = {row.name: evaluate(row.size, sizes) for row in kernel.row_buffers}
    scratch = {
        row.name: torch.zeros(points.numel() * lengths[row.name], dtype=row.dtype.torch, device=space.device)
        for row in kernel.row_buffers
    }
    make = KernelEvaluator if evaluator_of is None else evaluator_of
    evaluator = make(space, sizes, {**storages, **scratch}, points, lengths)
    values: dict[str, Tensor] = {}
    for section in kernel.sections:
        _run_section(section, evaluator, values)


class KernelEvaluator(Evaluator):
    """An evaluator that finds each parallel point's own part of a row buffer."""

    def __init__(
        self,
        space: Space,
        sizes: Mapping[str, int],
        storages: Mapping[str, Tensor],
        points: Tensor,
        lengths: Mapping[str, int],
    ) -> None:
        super().__init__(space, sizes, storages)
        self._points = points
        self._lengths = lengths

    def storage_index(self, name: str, position: Tensor) -> Tensor:
        if name not in self._lengths:
            return super().storage_index(name, position)
        length = self._lengths[name]
        self.check(name, position, length)
        return position + self._points * length


def _run_section(section: Section, evaluator: Evaluator, values: dict[str, Tensor]) -> None:
    inside: dict[str, Tensor] = dict(values)
    for stmt in section.body:
        for name in stmt.args:
            if name not in inside:
                raise IRError(f"{stmt.op} uses {name!r}, which is not known there")
        match stmt:
            case Store():
                evaluator.store(stmt, inside, section.looped)
                continue
            case Reduce():
                # known after the loop: put where later sections look, and not where this one does
                found = evaluator.reduce(stmt.kind, tuple(inside[name] for name in stmt.args))
                values.update(zip(stmt.targets, found, strict=True))
                continue
            case Scan():
                found = evaluator.scan(stmt.kind, tuple(inside[name] for name in stmt.args))
            case _:
                found = (evaluator.value(stmt, inside),)
        defined = dict(zip(stmt.targets, found, strict=True))
        inside.update(defined)
        if not section.looped:
            values.update(defined)
