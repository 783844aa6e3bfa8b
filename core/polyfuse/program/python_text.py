"""A host program as the text of a Python module."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import torch

import polyfuse.runtime as runtime
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.names import Names, plain_word
from polyfuse.base.text import shorten
from polyfuse.ir.nodes import Opaque, Origin, View
from polyfuse.program.loops.printing import print_loop
from polyfuse.program.partitions import uses
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
    Part,
    Program,
    RaiseFailed,
    Read,
    Ref,
    Return,
    Reuse,
    Series,
    Step,
    Synchronize,
)
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.explain import MARK
from polyfuse.symbolic import Index, IndexLike, example_value
from polyfuse.symbolic import text as symbolic_text

__all__ = ["OBJECT_CALL", "is_plain_layout", "origin_text", "python_text"]

_TABLES = "KERNELS OBJECTS INPUTS NAMES CHECKS ALIGNED GRAPH PARTITIONS SERIES VIEWS SEEN ALONE"
_MODULE = f"NAME DEVICE {_TABLES} math torch main"
_FUNCTIONS = "call call_partitioned call_python args given _"
_RESERVED = (*keyword.kwlist, *dir(builtins), *runtime.__all__, *_MODULE.split(), *_FUNCTIONS.split())
_PLAIN_HOST_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)

OBJECT_CALL = "object."
"""Start of the name of an operator that is an entry of the object table."""

_SHOWN_SOURCES = 3
_SHOWN_OPS = 8


def python_text(program: Program, *, harness: bool = False) -> str:
    """The text of a module whose function ``call`` runs the program; `runtime.load` makes it callable.

    Args:
        program: what to print.
        harness: whether the text, run as a script, times itself on random inputs.

    Raises:
        UnsupportedError: an operator has an argument that has no text.
    """
    return _Printer(program).text(harness)


class _Printer:
    """The state of printing one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.helpers: set[str] = set()
        self.typed: dict[str, dict[str, str]] = {}  # of each cached block: type -> the block seen as it
        self.globals: dict[str, str] = {}  # text of the value -> name
        self.objects: dict[str, str] = {}  # name -> key
        self.names = Names((*_RESERVED, *_printed_as_they_are(program)))
        self.variables: dict[str, str] = {}
        self.lines: list[str] = []
        self.functions: list[str] = []
        self.indent = "    "
        self.dead: list[str] = []
        self.shapes: dict[tuple[IndexLike, ...], str] = {}

    def text(self, harness: bool) -> str:
        """The whole module."""
        program = self.program
        symbols = self._plain_symbols()
        for name, key in program.constants:
            self.objects[self.variable(name)] = key
        if program.has_partitioned_form:
            self._body("call_partitioned", symbols, program.partitions)
            self.functions += ["", "", "def call_partitioned(args):", *self.lines]
            self.lines = []
        recorded = () if program.has_partitioned_form else program.partitions
        self._body("call", symbols, recorded or program.series)
        title = f'"""Graph {program.name} ({program.kind}), compiled by Polyfuse."""'
        parts = [title, ""]
        if any("math." in line for line in (*self.functions, *self.lines)):
            parts.append("import math\n")
        if any("torch." in text for text in self.globals):
            parts.append("import torch\n")
        if self.helpers:
            parts += [f"from polyfuse.runtime import {', '.join(sorted(self.helpers))}", ""]
        parts += [f"{name} = {text}" for text, name in self.globals.items()]
        kernels = tuple(k.name for k in program.kernels)
        parts += ["", f"NAME = {program.name!r}", f"KERNELS = {kernels!r}", f"OBJECTS = {self.objects!r}"]
        parts += self._tables()
        parts += [""] if kernels or self.objects else []
        parts += [f"{name} = None" for name in (*kernels, *self.objects)]
        parts += [*self.functions, "", "", "def call(args):", *self.lines]
        if harness:
            parts += ["", "", 'if __name__ == "__main__":']
            parts += ["    from polyfuse.compiler.reports.rebuilt import main", "", "    main(globals())"]
        return "\n".join(parts) + "\n"

    def _tables(self) -> list[str]:
        """What the loader checks at the first call, and what example inputs look like."""
        hints = dict(self.program.symbol_hints)

        def example(index: IndexLike) -> int:
            return example_value(index, hints)

        rows = ["INPUTS = ("]
        free = _devices_unchecked(self.program)
        for item in self.program.inputs:
            size, stride = tuple(map(example, item.size)), tuple(map(example, item.stride))
            if item.kind == "symint" and item.value is not None:
                size = (example(item.value),)
            device = "" if item.name in free else item.device
            row = (self.variable(item.name), item.kind, item.dtype, device, size, stride)
            rows.append(f"    {row!r},")
        rows.append(")")
        if labels := {self.variable(i.name): i.label for i in self.program.inputs if i.label}:
            rows.append(f"NAMES = {labels!r}")
        position = {item.name: i for i, item in enumerate(self.program.inputs)}
        checks = tuple((position[c.name], c.size, c.stride) for c in self.program.checks)
        aligned = tuple(
            (position[i.name], i.alignment, i.mutated, i.static) for i in self.program.inputs if i.alignment
        )
        if self.program.recording is not None:
            facts = asdict(self.program.recording)
            del facts["names"]  # `INPUTS` has them
            rows.append(f"GRAPH = {facts!r}")
        if self.program.partitions:
            table = tuple((p.name, asdict(p.facts), len(p.inputs)) for p in self.program.partitions)
            rows.append(f"PARTITIONS = {table!r}")
        if self.program.series:
            rows.append("SERIES = (")
            for series in self.program.series:
                rows.append(
                    f"    ({series.name!r}, {len(series.inputs)}, {series.symbols!r}, {series.slots},"
                )
                rows += [
                    f"     {series.returns!r}, (",
                    *(f"         {row!r}," for row in series.rows),
                    "     )),",
                ]
            rows.append(")")
        if self.program.views:
            rows.append(f"VIEWS = {self.program.views!r}")
        if self.program.noted:
            rows.append("SEEN = {}")
        if self.program.computes_alone:
            rows.append("ALONE = True")
        return [*rows, f"CHECKS = {checks!r}", f"ALIGNED = {aligned!r}", f"DEVICE = {self.program.device!r}"]

    # Names.

    def variable(self, name: str) -> str:
        """The Python name of a variable."""
        found = self.variables.get(name)
        if found is not None:
            return found
        plain = plain_word(name)
        if plain != name:
            plain = plain_word(f"v_{name}")
        elif isinstance(vars(torch).get(name), torch.dtype):
            plain = f"{name}_"
        found = self.variables[name] = self.names.of(("variable", name), plain)
        return found

    def helper(self, name: str) -> str:
        """A function of the runtime, imported."""
        self.helpers.add(name)
        return name

    def constant(self, text: str, name: str) -> str:
        """A value computed once when the module is loaded."""
        if text not in self.globals:
            self.globals[text] = self.names.fresh(plain_word(name).strip("_"))
        return self.globals[text]

    def dtype(self, name: str) -> str:
        """The global that holds a dtype."""
        return self.constant(f"torch.{name}", name)

    # Values.

    def index(self, index: IndexLike) -> str:
        """A size expression."""
        return symbolic_text.python_text(index)

    def shape(self, values: tuple[IndexLike, ...]) -> str:
        """A size or stride as a tuple."""
        found = self.shapes.get(values)
        if found is None:
            found = self.shapes[values] = _tuple([self.index(v) for v in values])
        return found

    def view(self, view: View, function: str = "reinterpret_tensor") -> str:
        """A view made on the spot."""
        base = self.variable(view.buffer)
        if view.dtype is not None:
            dtype = self.dtype(str(view.dtype.torch).removeprefix("torch."))
            typed = self.typed.get(view.buffer)
            if typed is None:
                base = f"{base}.view({dtype})"
            else:
                # a cached block has a buffer for nearly each kernel: it is seen as each type once
                if dtype not in typed:
                    typed[dtype] = self.names.of(("typed", view.buffer, dtype), f"{base}_as_{dtype}")
                    self._line(f"{typed[dtype]} = {base}.view({dtype})")
                base = typed[dtype]
        offset = "" if view.offset == 0 else f", {self.index(view.offset)}"
        layout = f"{self.shape(view.size)}, {self.shape(view.stride)}"
        return f"{self.helper(function)}({base}, {layout}{offset})"

    def value(self, value: Any) -> str:
        """An operand or result."""
        if isinstance(value, Ref):
            return self.variable(value.name)
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, Index):
            return self.index(value)
        if isinstance(value, (tuple, list)):
            return _tuple(self.value(item) for item in value)
        if isinstance(value, Opaque):
            return self._opaque(value)
        if isinstance(value, float):
            return _float_text(value)
        if value is None or isinstance(value, (bool, int, str, complex)) or value is Ellipsis:
            return repr(value)
        if isinstance(value, _PLAIN_HOST_VALUES):
            return self.constant(_host_text(value), _host_text(value).removeprefix("torch."))
        raise UnsupportedError(
            f"an operator has an argument of type {type(value).__name__}, which has no text",
            "lower it to an Opaque value with a key of the graph's object table",
        )

    def _opaque(self, value: Opaque) -> str:
        if value.text:
            return self.constant(value.text, value.text.removeprefix("torch."))
        for name, key in self.objects.items():
            if key == value.key:
                return name
        name = self.variable(f"object_{len(self.objects)}")
        self.objects[name] = value.key
        return name

    # Steps.

    def _body(self, function: str, plain_inputs: set[str], parts: Sequence[Part]) -> None:
        names = []
        for item in self.program.inputs:
            if item.kind == "none":
                names.append("_")
            else:
                names.append(self.variable(item.name))
        if names:
            self._line(f"({names[0]},) = args" if len(names) == 1 else f"{', '.join(names)} = args")
        self._line("args.clear()")
        self._alignment_check(function)
        if self.program.profile:
            self._open(f"with {self.helper('record_function')}({'polyfuse ' + self.program.name!r}):")
        done = 0
        lost: set[str] = set()
        for part in parts:
            self._steps(done, part.start, plain_inputs, lost)
            self._flush()
            _print_part(self, part, lost)
            lost.update(part.lost)
            done = part.end
        loop = self.program.loop
        if loop is not None:
            self._steps(done, loop.start, plain_inputs, lost)
            print_loop(self, loop, partial(self._steps, loop.start, loop.end, plain_inputs, lost))
            done = loop.end
        self._steps(done, len(self.program.steps), plain_inputs, lost)

    def _steps(self, start: int, end: int, plain_inputs: set[str], lost: set[str]) -> None:
        origins: tuple[Origin, ...] = ()
        for step in self.program.steps[start:end]:
            if isinstance(step, BindSymbol) and step.symbol in plain_inputs:
                continue
            if (
                step.origins is not origins
                and not isinstance(step, (Free, Return))
                and step.origins != origins
            ):
                self._flush()
                self._line(f"{MARK}{origin_text(step.origins)}")
                origins = step.origins
            if isinstance(step, Free) and lost:
                step = Free(tuple(name for name in step.names if name not in lost))
            self._step(step)

    def _alignment_check(self, function: str) -> None:
        """Turn aside where an input is not where kernels take it to be; parameters are looked at once."""
        varying = [i for i in self.program.inputs if i.alignment and not i.static]
        if varying:
            addresses = " | ".join(f"{self.variable(i.name)}.data_ptr()" for i in varying)
            alignment = max(i.alignment for i in varying)
            self._line(f"if ({addresses}) & {alignment - 1}:")
            names = ("None" if i.kind == "none" else self.variable(i.name) for i in self.program.inputs)
            self._line(f"    return {self.helper('realigned')}({function}, [{', '.join(names)}], ALIGNED)")

    def _plain_symbols(self) -> set[str]:
        """Symbols that are an input's very value: the input is unpacked under the symbol's name."""
        found: set[str] = set()
        seen, numbers = set[str](), {item.name for item in self.program.inputs if item.kind == "symint"}
        for step in self.program.steps:
            if isinstance(step, BindSymbol) and step.is_copy and step.read.name not in seen:
                if step.read.name == step.symbol or step.read.name in numbers:
                    seen.add(step.read.name)
                    self.names.bind(("variable", step.read.name), step.symbol)
                if step.read.name in numbers:
                    found.add(step.symbol)
        return found

    def _open(self, line: str) -> None:
        self._line(line)
        self.indent += "    "

    def _line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def _flush(self) -> None:
        """Forget what is dead: several names in one statement."""
        if self.dead:
            self._line(f"del {', '.join(self.dead)}")
            self.dead.clear()

    def _step(self, step: Step) -> None:
        if isinstance(step, Free):
            self.dead += [self.variable(name) for name in step.names]
            return
        self._flush()
        if isinstance(step, LaunchKernel):
            operands = (self.variable(o) if isinstance(o, str) else self.index(o) for o in step.operands)
            self._guarded(f"{step.kernel}({', '.join(operands)})", step.kernel, step.device)
        elif isinstance(step, ExternStep):
            self._extern(step)
        elif isinstance(step, Return):
            self._line(f"return {_tuple(self.value(v) for v in step.values)}")
        elif isinstance(step, (Allocate, Reuse, MakeView, Conform)):
            self._memory(step)
        elif isinstance(step, KeepMemory):
            self._line(f"{self.helper('keep_memory')}({self.variable(step.name)})")
            typed = self.typed.pop(step.name, {})
            if typed:
                self._line(f"del {', '.join(typed.values())}")
        elif isinstance(step, BindSymbol):
            self._bind(step)
        elif isinstance(step, AssertLayout):
            layout = f"{self.shape(step.size)}, {self.shape(step.stride)}"
            check = self.helper("assert_size_stride" if is_plain_layout(step) else "assert_layout")
            self._line(f"{check}({self.variable(step.name)}, {layout})")
        elif isinstance(step, RaiseFailed):
            rows = _tuple(f"({kind!r}, {text!r}, {self.index(size)})" for kind, text, size in step.rows)
            self._line(f"{self.helper('raise_failed')}({self.variable(step.name)}, {rows})")
        elif isinstance(step, AssertFinite):
            self._line(f"{self.helper('assert_finite')}({self.variable(step.name)}, {step.label!r})")
        elif isinstance(step, Observe):
            self._line(f"{self.helper('observe')}({step.label!r}, {self.variable(step.name)})")
        elif isinstance(step, Synchronize):
            self._line(f"{self.helper('synchronize')}({step.device!r})")
        else:
            name = type(step).__name__
            raise TypeError(f"python_text() does not know {name}; add its form beside the others")

    def _memory(self, step: Allocate | Reuse | MakeView | Conform) -> None:
        if isinstance(step, MakeView):
            made = self.view(step.view, "result_view" if step.result else "reinterpret_tensor")
            self._line(f"{self.variable(step.name)} = {made}")
            return
        layout = f"{self.shape(step.size)}, {self.shape(step.stride)}"
        if isinstance(step, Allocate) and step.cached:
            self.typed[step.name] = {}
            self._line(
                f"{self.variable(step.name)} = {self.helper('cached_memory')}({self.index(step.size[0])})"
            )
        elif isinstance(step, Allocate):
            if device_of(step.device).is_host:
                function = self.helper("empty_strided_cpu")
            else:
                # under the guard the program's own device is the current one, and the short form means that
                device = step.device.split(":")[0] if step.device == self.program.device else step.device
                function = self.constant(f"{self.helper('allocator')}({device!r})", f"empty_strided_{device}")
            self._line(f"{self.variable(step.name)} = {function}({layout}, {self.dtype(step.dtype)})")
        elif isinstance(step, Reuse):
            new, old = self.variable(step.new), self.variable(step.old)
            text = old if step.same_layout else f"{self.helper('reinterpret_tensor')}({old}, {layout})"
            self._line(f"{new} = {text}; del {old}  # same storage")
        else:
            name = self.variable(step.name)
            more = f", {step.alignment}" if step.alignment else ""
            more += f", dtype={self.dtype(step.dtype)}" if step.dtype else ""
            self._line(f"{name} = {self.helper('conform')}({name}, {layout}{more})")

    def _extern(self, step: ExternStep) -> None:
        out = ", out=True" if step.out == "out" else ""
        name = f"{step.op.removesuffix('.out')}_out" if out else step.op
        if step.op.startswith(OBJECT_CALL):
            function = self._opaque(Opaque(key=step.op.removeprefix(OBJECT_CALL)))
        else:
            function = self.constant(f"{self.helper('operator')}({step.op!r}{out})", name)
        arguments = [self.value(a) for a in step.args]
        arguments += [f"{key}={self.value(value)}" for key, value in step.kwargs]
        if step.out == "out":
            arguments.append(f"out={self.variable(step.outputs[0])}")
        call = f"{function}({', '.join(arguments)})"
        names = [self.variable(name) if name else "_" for name in step.outputs]
        if step.out in ("none", "out") or not any(step.outputs):
            self._marked(call, step.op)
        elif step.out == "tuple":
            targets = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
            self._marked(f"{targets} = {call}", step.op)
            if "_" in names:
                self._line("del _")
        else:
            self._marked(f"{names[0]} = {call}", step.op)

    def _guarded(self, line: str, label: str, device: str) -> None:
        """A launch, with another device current than the program's own if one is given."""
        if device:
            guard = self.constant(f"{self.helper('device_guard')}({device!r})", f"on_{device}")
            self._line(f"with {guard}():")
            self.indent += "    "
        self._marked(line, label)
        if device:
            self.indent = self.indent[:-4]

    def _marked(self, line: str, label: str) -> None:
        """A launch or call, marked for the profiler if that is asked for."""
        if self.program.profile:
            self._line(f"with {self.helper('record_function')}({label!r}):")
            self._line("    " + line)
        else:
            self._line(line)

    def _bind(self, step: BindSymbol) -> None:
        text = _bound_text(self, step)
        if text != step.symbol:
            self._line(f"{step.symbol} = {text}")
        if step.symbol in self.program.noted:
            self._line(f"SEEN[{step.symbol!r}] = {step.symbol}")


def _bound_text(printer: _Printer, step: BindSymbol) -> str:
    """The value of a symbol, solved for in what is read; the symbol itself where that is it."""
    text = _read_text(printer, step.read)
    if text == step.symbol:
        return text
    if step.offset != 0:
        text = f"({text} - ({printer.index(step.offset)}))"
    if step.factor != 1:
        text = f"{text} // ({printer.index(step.factor)})"
    return f"math.isqrt({text})" if step.power == 2 else text


def is_plain_layout(step: AssertLayout) -> bool:
    """Whether an input surely has strides: tensors without are described with zeros, as expanded ones are."""
    return not step.stride or any(n != 0 for n in step.stride)


def _print_part(printer: _Printer, part: Part, lost: set[str]) -> None:
    """A function, put before the program's own, and the call of it."""
    given = [printer.variable(name) for name in part.inputs] + list(part.symbols)
    results = _tuple(printer.variable(name) for name in part.results)
    dead = [printer.variable(name) for name in part.dead]
    outside, printer.lines = printer.lines, []
    printer.indent = "    "
    if given:
        printer._line(f"{', '.join(given)}{',' if len(given) == 1 else ''} = args")
    printer._line("args.clear()")
    printer._steps(part.start, part.end, set(), lost | set(part.dead) - set(part.inputs))
    printer._flush()
    printer._line(f"return {results}")
    printer.functions += ["", "", f"def {part.name}(args):", *printer.lines]
    printer.lines = outside
    inputs = f"[{', '.join(given)}]"
    if isinstance(part, Series):
        printer._line(f"{MARK}{part.name}")
        if dead:
            # what the function forgets, nobody else holds
            printer._line(f"given = {inputs}; del {', '.join(dead)}")
            inputs, dead = "given", []
    call = f"{part.name}({inputs})"
    printer._line(f"{results} = {call}" if part.results else call)
    printer.dead += dead


def _read_text(printer: _Printer, read: Read) -> str:
    name = printer.variable(read.name)
    if read.kind == "value":
        return name
    return f"{name}.shape[{read.dim}]" if read.kind == "size" else f"{name}.stride({read.dim})"


_shown_source = lru_cache(1024)(shorten)
"""Equal layers have equal lines."""


def _tuple(items: Any) -> str:
    parts = list(items)
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _float_text(value: float) -> str:
    if value != value:
        return "math.nan"
    if value in (float("inf"), float("-inf")):
        return "math.inf" if value > 0 else "-math.inf"
    return repr(value)


def _host_text(value: Any) -> str:
    return f"torch.{value!r}" if isinstance(value, torch.device) else str(value)


def origin_text(origins: tuple[Origin, ...]) -> str:
    """Operators and source lines on one line."""
    if not origins:
        return "the compiler"
    ops = list(dict.fromkeys(o.op for o in origins))
    sources = list(dict.fromkeys(_shown_source(o.source) for o in origins if o.source))
    shown = ", ".join(ops[:_SHOWN_OPS])
    if len(ops) > _SHOWN_OPS:
        shown += f" and {len(ops) - _SHOWN_OPS} more"
    if not sources:
        return shown
    locations = "; ".join(sources[:_SHOWN_SOURCES])
    more = len(sources) - _SHOWN_SOURCES
    return f"{shown} at {locations}" + (f" and {more} more lines" if more > 0 else "")


def _printed_as_they_are(program: Program) -> Iterator[str]:
    """Names that the text has unchanged: kernels, partitions, and symbols, which texts of sizes hold."""
    yield from (item.name for item in program.kernels)
    yield from (part.name for part in program.partitions)
    yield from (series.name for series in program.series)
    yield from (*dict(program.symbol_hints), *(s.symbol for s in program.steps if isinstance(s, BindSymbol)))


def _devices_unchecked(program: Program) -> set[str]:
    """Scalar inputs that go to eager operators and nowhere else.

    Operators return some of these on other devices than they were traced with (the seeds of attention are on
    the CPU or on the device, as the operator finds useful), and take them back from there.
    """
    found = {i.name for i in program.inputs if i.kind == "tensor" and not i.size}
    for step in program.steps:
        if isinstance(step, (LaunchKernel, MakeView, Reuse, BindSymbol)):
            found.difference_update(uses(step))
    return found
