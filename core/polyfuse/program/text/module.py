"""A host program as the text of a Python module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from polyfuse.ir.nodes import Origin
from polyfuse.program.steps import AssertLayout, BindSymbol, Free, Part, Program, Return, Series, Step
from polyfuse.program.text.loops import checked_in_turns, print_loop
from polyfuse.program.text.origins import origin_text
from polyfuse.program.text.statements import Statements
from polyfuse.program.text.tables import table_lines
from polyfuse.program.text.writer import Writer, tuple_text
from polyfuse.runtime.explain import MARK


def python_text(program: Program, *, harness: bool = False) -> str:
    """The text of a module whose function ``call`` runs the program; `runtime.load` makes it callable.

    Args:
        program: what to print.
        harness: whether the text, run as a script, times itself on random inputs.

    Raises:
        UnsupportedError: an operator has an argument that has no text.
    """
    return _Module(program).text(harness)


class _Module:
    """The state of printing one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.writer = Writer(_printed_as_they_are(program))
        self.statements = Statements(program, self.writer)
        self.functions: list[str] = []
        self.unpacked = self._unpacked_symbols()

    def text(self, harness: bool) -> str:
        """The whole module."""
        program, writer = self.program, self.writer
        for name, key in program.constants:
            writer.objects[writer.variable(name)] = key
        if program.has_partitioned_form:
            partitioned = self._body("call_partitioned", program.partitions)
            self.functions += ["", "", "def call_partitioned(args):", *partitioned]
        recorded = () if program.has_partitioned_form else program.partitions
        body = [*self._body("call", recorded or program.series)]
        functions = [*self.functions, "", "", "def call(args):", *body]
        title = f'"""Graph {program.name} ({program.kind}), compiled by Polyfuse."""'
        parts = [title, "", *self._imports(functions)]
        parts += [f"{name} = {text}" for text, name in writer.globals.items()]
        kernels = tuple(k.name for k in program.kernels)
        parts += ["", f"NAME = {program.name!r}", f"KERNELS = {kernels!r}", f"OBJECTS = {writer.objects!r}"]
        parts += table_lines(program, writer.variable)
        parts += [""] if kernels or writer.objects else []
        parts += [f"{name} = None" for name in (*kernels, *writer.objects)]
        parts += functions
        if harness:
            parts += ["", "", 'if __name__ == "__main__":']
            parts += ["    from polyfuse.compiler.reports.rebuilt import main", "", "    main(globals())"]
        return "\n".join(parts) + "\n"

    def _imports(self, functions: Sequence[str]) -> Iterator[str]:
        if any("math." in line for line in functions):
            yield "import math\n"
        if any("torch." in text for text in self.writer.globals):
            yield "import torch\n"
        if self.writer.helpers:
            yield f"from polyfuse.runtime import {', '.join(sorted(self.writer.helpers))}"
            yield ""

    def _body(self, function: str, parts: Sequence[Part]) -> list[str]:
        """The lines of the function that runs the whole program."""
        writer, program = self.writer, self.program
        with writer.function() as lines:
            names = ["_" if item.kind == "none" else writer.variable(item.name) for item in program.inputs]
            if names:
                writer.line(f"({names[0]},) = args" if len(names) == 1 else f"{', '.join(names)} = args")
            writer.line("args.clear()")
            self._alignment_check(function)
            if program.profile:
                writer.enter(f"with {writer.helper('record_function')}({'polyfuse ' + program.name!r}):")
            done = 0
            lost: set[str] = set()
            for part in parts:
                self._steps(done, part.start, self.unpacked, lost)
                writer.flush()
                self._part(part, lost)
                lost.update(part.lost)
                done = part.end
            if program.loop is not None:
                start, end = program.loop.start, program.loop.end
                checks = checked_in_turns(program, program.loop)
                apart = {name for column in program.loop.given if column[0] in checks for name in column}
                self._steps(done, start, self.unpacked, lost, apart)
                body = partial(self._steps, start, end, self.unpacked, lost)
                print_loop(writer, program.loop, list(map(self._printed, checks.values())), body)
                done = end
            self._steps(done, len(program.steps), self.unpacked, lost)
        return lines

    def _part(self, part: Part, lost: set[str]) -> None:
        """A function, put before the program's own, and the call of it."""
        writer = self.writer
        given = [writer.variable(name) for name in part.inputs] + list(part.symbols)
        results = tuple_text(writer.variable(name) for name in part.results)
        dead = [writer.variable(name) for name in part.dead]
        with writer.function() as lines:
            if given:
                writer.line(f"{', '.join(given)}{',' if len(given) == 1 else ''} = args")
            writer.line("args.clear()")
            self._steps(part.start, part.end, set(), lost | set(part.dead) - set(part.inputs))
            writer.flush()
            writer.line(f"return {results}")
        self.functions += ["", "", f"def {part.name}(args):", *lines]
        inputs = f"[{', '.join(given)}]"
        if isinstance(part, Series):
            writer.line(f"{MARK}{part.name}")
            if dead:
                # what the function forgets, nobody else holds
                writer.line(f"given = {inputs}; del {', '.join(dead)}")
                inputs, dead = "given", []
        call = f"{part.name}({inputs})"
        writer.line(f"{results} = {call}" if part.results else call)
        writer.dead += dead

    def _printed(self, step: Step) -> Callable[[], None]:
        return partial(self.statements.step, step)

    def _steps(
        self,
        start: int,
        end: int,
        unpacked: set[str],
        lost: set[str],
        checked: Collection[str] = (),
    ) -> None:
        """Steps, a comment above those that come from the same operators.

        Args:
            start, end: which ones.
            unpacked: symbols that are there already.
            lost: variables that the function has no more, or never had.
            checked: those whose layout is checked elsewhere.
        """
        writer = self.writer
        origins: tuple[Origin, ...] = ()
        for step in self.program.steps[start:end]:
            if isinstance(step, BindSymbol) and step.symbol in unpacked:
                continue
            if isinstance(step, AssertLayout) and step.name in checked:
                continue
            other = step.origins is not origins and step.origins != origins
            if other and not isinstance(step, (Free, Return)):
                writer.flush()
                writer.line(f"{MARK}{origin_text(step.origins)}")
                origins = step.origins
            if isinstance(step, Free) and lost:
                step = Free(tuple(name for name in step.names if name not in lost))
            self.statements.step(step)

    def _alignment_check(self, function: str) -> None:
        """Turn aside where an input is not where kernels take it to be; parameters are looked at once."""
        writer = self.writer
        varying = [i for i in self.program.inputs if i.alignment and not i.static]
        if varying:
            addresses = " | ".join(f"{writer.variable(i.name)}.data_ptr()" for i in varying)
            alignment = max(i.alignment for i in varying)
            writer.line(f"if ({addresses}) & {alignment - 1}:")
            names = ("None" if i.kind == "none" else writer.variable(i.name) for i in self.program.inputs)
            writer.line(f"    return {writer.helper('realigned')}({function}, [{', '.join(names)}], ALIGNED)")

    def _unpacked_symbols(self) -> set[str]:
        """Symbols that are an input's very value: the input is unpacked under the symbol's name."""
        found: set[str] = set()
        seen, numbers = set[str](), {item.name for item in self.program.inputs if item.kind == "symint"}
        for step in self.program.steps:
            if isinstance(step, BindSymbol) and step.is_copy and step.read.name not in seen:
                if step.read.name == step.symbol or step.read.name in numbers:
                    seen.add(step.read.name)
                    self.writer.names.bind(("variable", step.read.name), step.symbol)
                if step.read.name in numbers:
                    found.add(step.symbol)
        return found


def _printed_as_they_are(program: Program) -> Iterator[str]:
    """Names that the text has unchanged: kernels, partitions, and symbols, which texts of sizes hold."""
    yield from (item.name for item in program.kernels)
    yield from (part.name for part in program.partitions)
    yield from (series.name for series in program.series)
    yield from (*dict(program.symbol_hints), *(s.symbol for s in program.steps if isinstance(s, BindSymbol)))
