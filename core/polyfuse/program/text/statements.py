"""Steps of a host program as Python statements."""

from __future__ import annotations

import torch

from polyfuse.ir.nodes import OBJECT_CALL, Opaque
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
    Read,
    Return,
    Reuse,
    Step,
    Synchronize,
)
from polyfuse.program.text.writer import Writer, tuple_text
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.workspace import FRESH
from polyfuse.symbolic import bounds, storage_size


class Statements:
    """Prints the steps of one program.

    Args:
        program: says which device is current, and whether launches are marked for the profiler.
        writer: takes the lines.
    """

    def __init__(self, program: Program, writer: Writer) -> None:
        self._program = program
        self._writer = writer

    def step(self, step: Step) -> None:
        """Print one step. What it frees is forgotten by the next line that is written.

        Raises:
            TypeError: its class has no form here.
        """
        w = self._writer
        if isinstance(step, Free):
            w.dead += [w.variable(name) for name in step.names]
            return
        w.flush()
        match step:
            case LaunchKernel():
                operands = (w.variable(o) if isinstance(o, str) else w.index(o) for o in step.operands)
                self._launch(f"{step.kernel}({', '.join(operands)})", step.kernel, step.device)
            case ExternStep():
                self._extern(step)
            case Return():
                w.line(f"return {tuple_text(w.value(v) for v in step.values)}")
            case Allocate():
                self._allocate(step)
            case Reuse():
                new, old = w.variable(step.new), w.variable(step.old)
                layout = f"{w.shape(step.size)}, {w.shape(step.stride)}"
                text = old if step.same_layout else f"{w.helper('reinterpret_tensor')}({old}, {layout})"
                w.line(f"{new} = {text}; del {old}  # same storage")
            case MakeView():
                made = w.view(step.view, "result_view" if step.result else "reinterpret_tensor")
                w.line(f"{w.variable(step.name)} = {made}")
            case Conform():
                name, layout = w.variable(step.name), f"{w.shape(step.size)}, {w.shape(step.stride)}"
                more = f", {step.alignment}" if step.alignment else ""
                more += f", dtype={w.dtype(step.dtype)}" if step.dtype else ""
                w.line(f"{name} = {w.helper('conform')}({name}, {layout}{more})")
            case KeepMemory():
                w.line(f"{w.helper('keep_memory')}({w.variable(step.name)})")
                typed = w.typed.pop(step.name, {})
                if typed:
                    w.line(f"del {', '.join(typed.values())}")
            case BindSymbol():
                self._bind(step)
            case AssertLayout():
                layout = f"{w.shape(step.size)}, {w.shape(step.stride)}"
                check = w.helper("assert_size_stride" if step.has_strides else "assert_layout")
                w.line(f"{check}({w.variable(step.name)}, {layout})")
            case RaiseFailed():
                rows = tuple_text(f"({kind!r}, {text!r}, {w.index(size)})" for kind, text, size in step.rows)
                look = w.helper("return_status" if step.last else "raise_failed")
                w.line(f"{look}({w.variable(step.name)}, {rows})")
            case AssertFinite():
                w.line(f"{w.helper('assert_finite')}({w.variable(step.name)}, {step.label!r})")
            case Observe():
                w.line(f"{w.helper('observe')}({step.label!r}, {w.variable(step.name)})")
            case Synchronize():
                w.line(f"{w.helper('synchronize')}({step.device!r})")
            case _:
                name = type(step).__name__
                raise TypeError(f"a host program's text has no {name}; add its form beside the others")

    def _allocate(self, step: Allocate) -> None:
        w, name = self._writer, self._writer.variable(step.name)
        if step.status:
            w.line(f"{name} = {w.helper('lend_status')}({w.index(step.size[0])})")
            return
        if step.cached:
            w.typed[step.name] = {}
            w.line(f"{name} = {w.helper('cached_memory')}({w.index(step.size[0])})")
            return
        if device_of(step.device).is_host:
            function = w.helper("empty_strided_cpu_large" if may_be_large(step) else "empty_strided_cpu")
        else:
            # under the guard the program's own device is the current one, and the short form means that
            device = step.device.split(":")[0] if step.device == self._program.device else step.device
            function = w.constant(f"{w.helper('allocator')}({device!r})", f"empty_strided_{device}")
        w.line(f"{name} = {function}({w.shape(step.size)}, {w.shape(step.stride)}, {w.dtype(step.dtype)})")

    def _extern(self, step: ExternStep) -> None:
        w = self._writer
        out = ", out=True" if step.out == "out" else ""
        name = f"{step.op.removesuffix('.out')}_out" if out else step.op
        if step.op.startswith(OBJECT_CALL):
            function = w.opaque(Opaque(key=step.op.removeprefix(OBJECT_CALL)))
        else:
            function = w.constant(f"{w.helper('operator')}({step.op!r}{out})", name)
        arguments = [w.value(a) for a in step.args]
        arguments += [f"{key}={w.value(value)}" for key, value in step.kwargs]
        if step.out == "out":
            arguments.append(f"out={w.variable(step.outputs[0])}")
        call = f"{function}({', '.join(arguments)})"
        names = [w.variable(name) if name else "_" for name in step.outputs]
        if step.out in ("none", "out") or not any(step.outputs):
            self._marked(call, step.op)
        elif step.out == "tuple":
            targets = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
            self._marked(f"{targets} = {call}", step.op)
            if "_" in names:
                w.line("del _")
        else:
            self._marked(f"{names[0]} = {call}", step.op)

    def _launch(self, call: str, label: str, device: str) -> None:
        """A launch, with another device current than the program's own if one is given."""
        if not device:
            self._marked(call, label)
            return
        guard = self._writer.constant(f"{self._writer.helper('device_guard')}({device!r})", f"on_{device}")
        with self._writer.block(f"with {guard}():"):
            self._marked(call, label)

    def _marked(self, line: str, label: str) -> None:
        """A launch or call, marked for the profiler if that is asked for."""
        if not self._program.profile:
            self._writer.line(line)
            return
        with self._writer.block(f"with {self._writer.helper('record_function')}({label!r}):"):
            self._writer.line(line)

    def _bind(self, step: BindSymbol) -> None:
        text = self._bound_text(step)
        if text != step.symbol:
            self._writer.line(f"{step.symbol} = {text}")
        if step.symbol in self._program.noted:
            self._writer.line(f"SEEN[{step.symbol!r}] = {step.symbol}")

    def _bound_text(self, step: BindSymbol) -> str:
        """The value of a symbol, solved for in what is read; the symbol itself where that is it."""
        text = self._read_text(step.read)
        if text == step.symbol:
            return text
        if step.offset != 0:
            text = f"({text} - ({self._writer.index(step.offset)}))"
        if step.factor != 1:
            text = f"{text} // ({self._writer.index(step.factor)})"
        return f"math.isqrt({text})" if step.power == 2 else text

    def _read_text(self, read: Read) -> str:
        name = self._writer.variable(read.name)
        if read.kind == "value":
            return name
        return f"{name}.shape[{read.dim}]" if read.kind == "size" else f"{name}.stride({read.dim})"


def may_be_large(step: Allocate) -> bool:
    """Whether a tensor may have memory that comes fresh from the system at each call."""
    most = bounds(storage_size(step.size, step.stride))[1]
    return most is None or most * getattr(torch, step.dtype).itemsize >= FRESH
