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
from polyfuse.ir.nodes import OBJECT_CALL, Opaque, View
from polyfuse.plugin.host import (
    Address,
    BindSize,
    Constant,
    Discard,
    Drop,
    HostInput,
    HostProgram,
    HostStep,
    MakeRequest,
    OffsetAddress,
    Operand,
    Raise,
    Request,
    Reserve,
    Run,
)
from polyfuse.plugin.source import HostCall
from polyfuse.program.native_memory import (
    STACK_BYTES,
    PlainMemory,
    is_on,
    plan_plain_memory,
    quiet_runs,
)
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
from polyfuse.symbolic import Atom, Index, IndexLike, atoms, bounds, storage_size, symbol
from polyfuse.symbolic.index import as_atom
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
        self.memory: PlainMemory = plan_plain_memory(
            program, frozenset(n for n, c in calls.items() if c is not None), device
        )
        self.table = [n for n in (k.name for k in program.kernels) if calls.get(n) is not None]
        self.requests: list[Request] = []
        self.steps: list[HostStep] = []
        self.slots: dict[str, str] = {}
        self.addressed: set[str] = set()
        self.stacked: set[str] = set()
        self.shown = {item.name: item.shown for item in program.inputs}
        self.numbers = {i.name for i in program.inputs if i.kind == "symint"}
        self.numbers.update(
            s.read.name for s in program.steps if isinstance(s, BindSymbol) and s.read.kind == "value"
        )
        self.symbols: dict[str, Index] = {}
        self.temporaries = 0
        self.origin = ""
        self.results: dict[str | IndexLike, int] = {}
        self.returns: tuple[Any, ...] = ()
        self.work: dict[int, int] = {}

    def lowered(self) -> HostProgram:
        """The whole program."""
        program = self.program
        launched = self.memory.launched
        for item in program.inputs:
            if item.alignment and not item.static:
                self.addressed.add(item.name)  # the check fetches it
            elif item.name in launched and item.kind == "tensor":
                self._address(item.name)
        pointed = tuple(name for name in self.constants if name in launched)
        for name in pointed:
            self._address(name)
        for step in program.steps:
            self.origin = origin_text(step.origins) if step.origins else ""
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
            requests=tuple(self.requests),
            steps=quiet_runs(self.steps, self.work),
            results=tuple(self.results),
            returns=self.returns,
            constant_keys=tuple(self.constants[name] for name in pointed),
            kernel_names=tuple(self.table),
        )

    # Steps.

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
            args = tuple(self._value(Ref(o) if isinstance(o, str) else o, operands) for o in step.operands)
            self._send("kernel", step.kernel, args, operands, ())
            return
        kinds = tuple("ptr" if isinstance(o, str) else "i64" for o in step.operands)
        if kinds != call.arguments:
            raise UnsupportedError(
                f"kernel {step.kernel} takes {', '.join(call.arguments)}, not {', '.join(kinds)}"
            )
        for operand in step.operands:
            if isinstance(operand, str):
                self._address(operand)
        given = tuple(self._slot(o) if isinstance(o, str) else self._index(o) for o in step.operands)
        # points of the kernel, for the example sizes
        hints = self.kernels[step.kernel].size_hints
        self.work[len(self.steps)] = math.prod(max(1, hint) for hint in hints)
        self.steps.append(Run(self.table.index(step.kernel), given))

    def _extern(self, step: ExternStep) -> None:
        operands: list[str | IndexLike] = []
        made: list[str] = []
        args = tuple(self._value(a, operands, made) for a in step.args)
        kwargs = [(key, self._value(value, operands, made)) for key, value in step.kwargs]
        outputs: tuple[str, ...] = ()
        kind, name = "operator", step.op
        if step.op.startswith(OBJECT_CALL):
            kind, name = "object", step.op.removeprefix(OBJECT_CALL)
        if step.out == "out":
            kwargs.append(("out", self._value(Ref(step.outputs[0]), operands, made)))
            kind = "out" if kind == "operator" else kind
        elif step.out != "none" and any(step.outputs):
            outputs = step.outputs
        self._send(kind, name, args, operands, outputs, tuple(kwargs), several=step.out == "tuple")
        if made:
            self.steps.append(Drop(tuple(made)))
        for output in outputs:
            if output and output not in self.numbers:
                self._defined(output)

    def _allocate(self, step: Allocate) -> None:
        if not is_on(step.device, self.device):
            raise UnsupportedError(f"{step.name} is allocated on {step.device}")
        dtype: torch.dtype = getattr(torch, step.dtype)
        if step.name in self.memory.plain:
            size = self._index(storage_size(step.size, step.stride) * dtype.itemsize)
            small = not self.device and isinstance(size, int) and self.memory.stack_bytes <= STACK_BYTES
            self.slots[step.name] = step.name
            self.stacked.update((step.name,) if small else ())
            self.steps.append(Reserve(step.name, size, small))
            return
        operands: list[str | IndexLike] = []
        function = DEVICE_TENSOR if self.device else "empty_strided_cpu"
        self._send("runtime", function, (*self._layout(step, operands), dtype), operands, (step.name,))
        self._defined(step.name)

    def _reuse(self, step: Reuse) -> None:
        old = self._slot(step.old)
        if step.new in self.memory.plain or step.same_layout:
            self.slots[step.new] = old
            return
        operands: list[str | IndexLike] = [old]
        args = (Operand(0), *self._layout(step, operands))
        self._send("runtime", "reinterpret_tensor", args, operands, (step.new,))
        self._defined(step.new)
        self.steps.append(Drop((old,)))

    def _make_view(self, step: MakeView) -> None:
        view = step.view
        if step.name not in self.memory.plain:
            self._view(view, step.name, "result_view" if step.result else "reinterpret_tensor")
            self._defined(step.name)
            return
        self._address(view.buffer)
        width = view.dtype.itemsize if view.dtype is not None else self.memory.itemsizes[view.buffer]
        offset = self._index(view.offset * width)
        self.slots[step.name] = step.name
        self.steps.append(OffsetAddress(step.name, self._slot(view.buffer), offset))

    def _view(self, view: View, name: str, function: str = "reinterpret_tensor") -> None:
        operands: list[str | IndexLike] = []
        base = self._value(Ref(view.buffer), operands)
        size, stride = self._value(view.size, operands), self._value(view.stride, operands)
        args: tuple[Any, ...] = (base, size, stride, self._value(view.offset, operands))
        if view.dtype is not None:
            function, args = "reinterpret_as", (*args, view.dtype.torch)
        self._send("runtime", function, args, operands, (name,))

    def _free(self, names: Sequence[str]) -> None:
        dropped: list[str] = []
        for name in names:
            if name in self.numbers:
                continue
            if name not in self.memory.plain:
                dropped.append(self._slot(name))
            elif name in self.memory.owners:
                slot = self._slot(name)
                if slot not in self.stacked:
                    self.steps.append(Discard(slot))
        if dropped:
            self.steps.append(Drop(tuple(dropped)))

    def _bind(self, step: BindSymbol) -> None:
        if shapes.named_fraction(step.symbol):
            raise UnsupportedError(f"the number {step.symbol} is read from data and no integer")
        read = step.read
        number = read.name
        if read.kind != "value":
            number = self._temporary("number")
            args = (Operand(0), read.dim)
            operands: list[str | IndexLike] = [self._slot(read.name)]
            self._send("runtime", read.kind, args, operands, (number,), letters="i")
        self.steps.append(
            BindSize(step.symbol, number, self._index(step.factor), self._index(step.offset), step.power)
        )
        if step.is_copy:
            self.symbols[number] = symbol(step.symbol)

    def _conform(self, step: Conform) -> None:
        operands: list[str | IndexLike] = [self._slot(step.name)]
        dtype = getattr(torch, step.dtype) if step.dtype else None
        args = (Operand(0), *self._layout(step, operands), step.alignment or 1, dtype)
        name = self._temporary("conformed")
        self._send("runtime", "conform", args, operands, (name,))
        self.steps.append(Drop((self._slot(step.name),)))
        self.slots[step.name] = name
        self._defined(step.name, name)

    def _check(self, step: Step) -> None:
        """Steps that only look at a tensor."""
        if isinstance(step, AssertLayout):
            operands: list[str | IndexLike] = [self._slot(step.name)]
            args = (Operand(0), *self._layout(step, operands))
            function = "assert_size_stride" if step.has_strides else "assert_layout"
            subject = self.shown.get(step.name, step.name)
            self._send("runtime", function, args, operands, (), subject=subject)
        elif isinstance(step, RaiseFailed):
            if self.device:
                raise UnsupportedError(f"{step.name}, which tells of an index out of range, is on a device")
            # a request that is made only where the status says so: its operands are that status and the sizes
            self._address(step.name)
            rows = tuple((kind, text) for kind, text, _ in step.rows)
            numbers = tuple(Operand(k) for k in range(2 * len(rows)))
            letters = "i" * len(numbers)
            request = Request("runtime", "raise_for", (rows, *numbers), (), letters, "", False, self.origin)
            self.requests.append(request)
            sizes = tuple(self._index(size) for _, _, size in step.rows)
            self.steps.append(Raise(len(self.requests) - 1, self._slot(step.name), len(rows), sizes))
        elif isinstance(step, AssertFinite):
            self._send("runtime", "assert_finite", (Operand(0), step.label), [self._slot(step.name)], ())
        elif isinstance(step, Observe):
            self._send("runtime", "observe", (step.label, Operand(0)), [self._slot(step.name)], ())
        else:
            raise UnsupportedError(f"a step {type(step).__name__} has no native form")

    def _return(self, step: Return) -> None:
        operands: list[str | IndexLike] = []
        self.returns = tuple(self._value(value, operands) for value in step.values)
        self.results = {operand: i for i, operand in enumerate(operands)}

    # Values.

    def _value(self, value: Any, operands: list[str | IndexLike], made: list[str] | None = None) -> Any:
        """An argument in which operands stand for what the program knows, which are put into a list. Names of
        references that are made for it alone are put into `made`.
        """
        if isinstance(value, Ref):
            if value.name in self.constants:
                return Constant(self.constants[value.name])
            if value.name in self.numbers:
                return self._operand(self._number(value.name), operands)
            return self._operand(self._slot(value.name), operands)
        if isinstance(value, View):
            name = self._temporary("view")
            self._view(value, name)
            self.slots[name] = name
            if made is not None:
                made.append(name)
            return self._operand(name, operands)
        if isinstance(value, Index):
            return self._operand(self._number_of(value, made), operands)
        if isinstance(value, (tuple, list)):
            return tuple(self._value(item, operands, made) for item in value)
        if isinstance(value, Opaque) and not value.text:
            return Constant(value.key)
        return value

    def _layout(
        self, step: Allocate | AssertLayout | Conform | Reuse, operands: list[str | IndexLike]
    ) -> tuple[Any, Any]:
        return self._value(step.size, operands), self._value(step.stride, operands)

    def _operand(self, operand: str | IndexLike, operands: list[str | IndexLike]) -> Operand:
        if operand not in operands:
            operands.append(operand)
        return Operand(operands.index(operand))

    def _number(self, name: str) -> Index:
        """The value of a variable that is a number."""
        if name not in self.symbols:
            fresh = self._temporary("number")
            self.steps.append(BindSize(fresh, name))
            self.symbols[name] = symbol(fresh)
        return self.symbols[name]

    def _number_of(self, index: Index, made: list[str] | None) -> str | IndexLike:
        """A size; what only Python computes, because it may be a fraction, as a reference."""
        atom: Atom | None = as_atom(index)
        if made is None or atom is None or atom.kind != "host":
            return self._index(index)
        name = self._temporary("host")
        operands: list[str | IndexLike] = []
        names = tuple(dict.fromkeys(a.name for a in atoms(index) if a.kind == "sym"))
        values = tuple(self._value(symbol(n), operands) for n in names)
        self._send("runtime", "host_number", (atom.name, names, *values), operands, (name,))
        self.slots[name] = name
        made.append(name)
        return name

    def _index(self, index: IndexLike) -> IndexLike:
        """A size that can be computed natively: in integers, without a division by nothing."""
        for atom in () if isinstance(index, int) else atoms(index):
            if atom.kind == "host" or (atom.kind == "sym" and shapes.named_fraction(atom.name)):
                raise UnsupportedError(f"the size {index} is no integer")
            if atom.kind in ("floordiv", "mod"):
                low, _ = bounds(atom.args[1])
                if low is None or low < 1:
                    raise UnsupportedError(f"the size {index} divides by a number that may be 0")
        return index

    # Requests and names.

    def _send(
        self,
        kind: str,
        name: str,
        args: tuple[Any, ...],
        operands: Sequence[str | IndexLike],
        results: tuple[str, ...],
        kwargs: tuple[tuple[str, Any], ...] = (),
        *,
        several: bool = False,
        letters: str = "",
        subject: str = "",
    ) -> None:
        letters = letters or "".join("-" if not r else "i" if r in self.numbers else "r" for r in results)
        given = "".join("r" if isinstance(o, str) else "i" for o in operands)
        request = Request(kind, name, args, kwargs, given, letters, several, self.origin, subject)
        self.requests.append(request)
        named = tuple(r for r in results if r)
        for result in named:
            self.slots[result] = result
        self.steps.append(MakeRequest(len(self.requests) - 1, tuple(operands), named))

    def _slot(self, name: str) -> str:
        return self.slots.get(name, name)

    def _defined(self, name: str, slot: str = "") -> None:
        """Fetch the address of a new reference if kernels want it."""
        self.addressed.discard(slot or name)
        if name in self.memory.launched:
            self._address(name)

    def _address(self, name: str) -> None:
        """Make sure of the address of a variable."""
        slot = self._slot(name)
        if name not in self.memory.plain and slot not in self.addressed:
            self.addressed.add(slot)
            self.steps.append(Address(slot))

    def _temporary(self, prefix: str) -> str:
        self.temporaries += 1
        return f"{prefix}.{self.temporaries}"


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
