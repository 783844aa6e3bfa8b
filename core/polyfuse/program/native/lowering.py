"""A host program in the form that backends print in their own languages (`polyfuse.plugin.host`).

Tensors that only directly called kernels touch become plain memory: they are reserved, never made. All others
are references, and whatever is done with them except launching kernels is a request to the environment. What
has no such form is refused with a reason; the Python program does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import OBJECT_CALL
from polyfuse.plugin.host import (
    BindSize,
    Discard,
    Drop,
    HostInput,
    HostProgram,
    OffsetAddress,
    Operand,
    Raise,
    Request,
    Reserve,
    Run,
)
from polyfuse.plugin.source import HostCall
from polyfuse.program.native.code import NativeCode
from polyfuse.program.native.memory import STACK_BYTES, PlainMemory, is_on, plan_plain_memory, quiet_runs
from polyfuse.program.steps import (
    Allocate,
    AssertFinite,
    AssertLayout,
    BindSymbol,
    Conform,
    ExternStep,
    Free,
    KeepMemory,
    LaunchKernel,
    MakeView,
    Observe,
    Program,
    RaiseFailed,
    Ref,
    Return,
    Reuse,
    Step,
)
from polyfuse.program.text import origin_text
from polyfuse.symbolic import IndexLike, storage_size, symbol
from polyfuse.torch_compat.tracing import shapes

DEVICE_TENSOR = "empty_strided_device"
"""The request for a tensor on the device, of sizes, strides and a type: programs inside Python make none."""


def native_program(program: Program, calls: Mapping[str, HostCall | None], device: str = "") -> HostProgram:
    """The program as a backend prints it.

    Args:
        program: what to say.
        calls: how each kernel is called directly, by its name in the program; None for one that can only be
            launched from Python.
        device: the type of the device on which all of it may compute; all memory is the device's then.
            Empty: the CPU.

    Raises:
        UnsupportedError: something in it has no native form.
    """
    return _Lowering(program, calls, device).lowered()


class _Lowering:
    """The state of one program."""

    def __init__(self, program: Program, calls: Mapping[str, HostCall | None], device: str) -> None:
        _refuse(program, device)
        self.program = program
        self.calls = calls
        self.device = device
        self.kernels = {entry.name: entry.kernel for entry in program.kernels}
        self.constants = dict(program.constants)
        direct = frozenset(name for name, call in calls.items() if call is not None)
        self.memory: PlainMemory = plan_plain_memory(program, direct, device)
        self.table = [n for n in (k.name for k in program.kernels) if calls.get(n) is not None]
        numbers = {i.name for i in program.inputs if i.kind == "symint"}
        numbers.update(
            s.read.name for s in program.steps if isinstance(s, BindSymbol) and s.read.kind == "value"
        )
        self.code = NativeCode(self.constants, self.memory, numbers)
        self.stacked: set[str] = set()
        self.shown = {item.name: item.shown for item in program.inputs}
        self.results: dict[str | IndexLike, int] = {}
        self.returns: tuple[Any, ...] = ()
        self.work: dict[int, int] = {}

    def lowered(self) -> HostProgram:
        """The whole program."""
        program = self.program
        launched = self.memory.launched
        for item in program.inputs:
            if item.alignment and not item.static:
                self.code.addressed.add(item.name)  # the check fetches it
            elif item.name in launched and item.kind == "tensor":
                self.code.address(item.name)
        pointed = tuple(name for name in self.constants if name in launched)
        for name in pointed:
            self.code.address(name)
        for step in program.steps:
            self.code.origin = origin_text(step.origins) if step.origins else ""
            self._step(step)
        called = tuple(self.calls[name] for name in self.table)
        return HostProgram(
            name=program.name,
            inputs=tuple(
                HostInput(
                    i.name,
                    {"tensor": "t", "symint": "i"}.get(i.kind, "r"),
                    0 if i.static else i.alignment,
                    i.label,
                )
                for i in program.inputs
            ),
            constants=pointed,
            kernels=tuple(call for call in called if call is not None),
            requests=tuple(self.code.requests),
            steps=quiet_runs(self.code.steps, self.work),
            results=tuple(self.results),
            returns=self.returns,
            constant_keys=tuple(self.constants[name] for name in pointed),
            kernel_names=tuple(self.table),
        )

    def _step(self, step: Step) -> None:
        match step:
            case KeepMemory():
                pass  # a native program plans its memory itself
            case LaunchKernel():
                self._launch(step)
            case ExternStep():
                self._extern(step)
            case Allocate():
                self._allocate(step)
            case Reuse():
                self._reuse(step)
            case MakeView():
                self._make_view(step)
            case Free():
                self._free(step.names)
            case BindSymbol():
                self._bind(step)
            case Return():
                self._return(step)
            case Conform():
                self._conform(step)
            case _:
                self._check(step)

    def _launch(self, step: LaunchKernel) -> None:
        call = self.calls.get(step.kernel)
        if call is None:
            operands: list[str | IndexLike] = []
            args = tuple(
                self.code.value(Ref(o) if isinstance(o, str) else o, operands) for o in step.operands
            )
            self.code.send("kernel", step.kernel, args, operands, ())
            return
        kinds = tuple("ptr" if isinstance(o, str) else "i64" for o in step.operands)
        if kinds != call.arguments:
            raise UnsupportedError(
                f"kernel {step.kernel} takes {', '.join(call.arguments)}, not {', '.join(kinds)}"
            )
        for operand in step.operands:
            if isinstance(operand, str):
                self.code.address(operand)
        given = tuple(self.code.slot(o) if isinstance(o, str) else self.code.index(o) for o in step.operands)
        # points of the kernel, for the example sizes
        hints = self.kernels[step.kernel].size_hints
        self.work[len(self.code.steps)] = math.prod(max(1, hint) for hint in hints)
        self.code.steps.append(Run(self.table.index(step.kernel), given))

    def _extern(self, step: ExternStep) -> None:
        operands: list[str | IndexLike] = []
        made: list[str] = []
        args = tuple(self.code.value(a, operands, made) for a in step.args)
        kwargs = [(key, self.code.value(value, operands, made)) for key, value in step.kwargs]
        outputs: tuple[str, ...] = ()
        kind, name = "operator", step.op
        if step.op.startswith(OBJECT_CALL):
            kind, name = "object", step.op.removeprefix(OBJECT_CALL)
        if step.out == "out":
            kwargs.append(("out", self.code.value(Ref(step.outputs[0]), operands, made)))
            kind = "out" if kind == "operator" else kind
        elif step.out != "none" and any(step.outputs):
            outputs = step.outputs
        self.code.send(kind, name, args, operands, outputs, tuple(kwargs), several=step.out == "tuple")
        if made:
            self.code.steps.append(Drop(tuple(made)))
        for output in outputs:
            if output and output not in self.code.numbers:
                self.code.defined(output)

    def _allocate(self, step: Allocate) -> None:
        if not is_on(step.device, self.device):
            raise UnsupportedError(f"{step.name} is allocated on {step.device}")
        dtype: torch.dtype = getattr(torch, step.dtype)
        if step.name in self.memory.plain:
            size = self.code.index(storage_size(step.size, step.stride) * dtype.itemsize)
            fits = step.status or self.memory.stack_bytes <= STACK_BYTES
            small = not self.device and isinstance(size, int) and fits
            self.code.slots[step.name] = step.name
            self.stacked.update((step.name,) if small else ())
            self.code.steps.append(Reserve(step.name, size, small, step.status))
            return
        operands: list[str | IndexLike] = []
        function = DEVICE_TENSOR if self.device else "zeros_cpu" if step.status else "empty_strided_cpu"
        self.code.send(
            "runtime", function, (*self.code.layout(step, operands), dtype), operands, (step.name,)
        )
        self.code.defined(step.name)

    def _reuse(self, step: Reuse) -> None:
        old = self.code.slot(step.old)
        if step.new in self.memory.plain or step.same_layout:
            self.code.slots[step.new] = old
            return
        operands: list[str | IndexLike] = [old]
        args = (Operand(0), *self.code.layout(step, operands))
        self.code.send("runtime", "reinterpret_tensor", args, operands, (step.new,))
        self.code.defined(step.new)
        self.code.steps.append(Drop((old,)))

    def _make_view(self, step: MakeView) -> None:
        view = step.view
        if step.name not in self.memory.plain:
            self.code.view(view, step.name, "result_view" if step.result else "reinterpret_tensor")
            self.code.defined(step.name)
            return
        self.code.address(view.buffer)
        width = view.dtype.itemsize if view.dtype is not None else self.memory.itemsizes[view.buffer]
        offset = self.code.index(view.offset * width)
        self.code.slots[step.name] = step.name
        self.code.steps.append(OffsetAddress(step.name, self.code.slot(view.buffer), offset))

    def _free(self, names: Sequence[str]) -> None:
        dropped: list[str] = []
        for name in names:
            if name in self.code.numbers:
                continue
            if name not in self.memory.plain:
                dropped.append(self.code.slot(name))
            elif name in self.memory.owners:
                slot = self.code.slot(name)
                if slot not in self.stacked:
                    self.code.steps.append(Discard(slot))
        if dropped:
            self.code.steps.append(Drop(tuple(dropped)))

    def _bind(self, step: BindSymbol) -> None:
        if shapes.named_fraction(step.symbol):
            raise UnsupportedError(f"the number {step.symbol} is read from data and no integer")
        read = step.read
        number = read.name
        if read.kind != "value":
            number = self.code.temporary("number")
            args = (Operand(0), read.dim)
            operands: list[str | IndexLike] = [self.code.slot(read.name)]
            self.code.send("runtime", read.kind, args, operands, (number,), letters="i")
        self.code.steps.append(
            BindSize(
                step.symbol, number, self.code.index(step.factor), self.code.index(step.offset), step.power
            )
        )
        if step.is_copy:
            self.code.symbols[number] = symbol(step.symbol)

    def _conform(self, step: Conform) -> None:
        operands: list[str | IndexLike] = [self.code.slot(step.name)]
        dtype = getattr(torch, step.dtype) if step.dtype else None
        args = (Operand(0), *self.code.layout(step, operands), step.alignment or 1, dtype)
        name = self.code.temporary("conformed")
        self.code.send("runtime", "conform", args, operands, (name,))
        self.code.steps.append(Drop((self.code.slot(step.name),)))
        self.code.slots[step.name] = name
        self.code.defined(step.name, name)

    def _check(self, step: Step) -> None:
        """Steps that only look at a tensor."""
        if isinstance(step, AssertLayout):
            operands: list[str | IndexLike] = [self.code.slot(step.name)]
            args = (Operand(0), *self.code.layout(step, operands))
            function = "assert_size_stride" if step.has_strides else "assert_layout"
            subject = self.shown.get(step.name, step.name)
            self.code.send("runtime", function, args, operands, (), subject=subject)
        elif isinstance(step, RaiseFailed):
            if self.device:
                raise UnsupportedError(f"{step.name}, which tells of an index out of range, is on a device")
            # a request that is made only where the status says so: its operands are that status and the sizes
            self.code.address(step.name)
            rows = tuple((kind, text) for kind, text, _ in step.rows)
            numbers = tuple(Operand(k) for k in range(2 * len(rows)))
            letters = "i" * len(numbers)
            request = Request(
                "runtime", "raise_for", (rows, *numbers), (), letters, "", False, self.code.origin
            )
            self.code.requests.append(request)
            sizes = tuple(self.code.index(size) for _, _, size in step.rows)
            self.code.steps.append(
                Raise(len(self.code.requests) - 1, self.code.slot(step.name), len(rows), sizes)
            )
        elif isinstance(step, AssertFinite):
            self.code.send(
                "runtime", "assert_finite", (Operand(0), step.label), [self.code.slot(step.name)], ()
            )
        elif isinstance(step, Observe):
            self.code.send("runtime", "observe", (step.label, Operand(0)), [self.code.slot(step.name)], ())
        else:
            raise UnsupportedError(f"a step {type(step).__name__} has no native form")

    def _return(self, step: Return) -> None:
        operands: list[str | IndexLike] = []
        self.returns = tuple(self.code.value(value, operands) for value in step.values)
        self.results = {operand: i for i, operand in enumerate(operands)}


def _refuse(program: Program, device: str) -> None:
    """Raise for programs that only Python runs."""
    if program.device and not is_on(program.device, device):
        raise UnsupportedError(f"it computes on {program.device}")
    if program.profile:
        raise UnsupportedError("the option profile looks at every launch")
    if program.partitions:
        raise UnsupportedError("partitions of it are recorded as device graphs")
    for step in program.steps:
        if isinstance(step, LaunchKernel) and step.device:
            raise UnsupportedError(f"a kernel runs on {step.device}")
