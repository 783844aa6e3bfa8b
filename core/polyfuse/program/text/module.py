"""A host program as the text of a Python module, loops over equal layers included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from polyfuse.ir.nodes import Origin
from polyfuse.program.partitions import uses
from polyfuse.program.steps import (
    AssertLayout,
    BindSymbol,
    Free,
    LaunchKernel,
    Loop,
    MakeView,
    Part,
    Program,
    Return,
    Reuse,
    Series,
    Step,
)
from polyfuse.program.text.statements import Statements
from polyfuse.program.text.writer import Writer, origin_text, tuple_text
from polyfuse.runtime.explain import MARK
from polyfuse.symbolic import IndexLike, example_value


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
        # a block is seen as a type by a variable of the function that does so
        outside = writer.typed
        writer.typed = {name: {} for name in outside}
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
        for name in outside.keys() - writer.typed.keys():
            writer.dead += outside[name].values()
        writer.typed = {name: outside.get(name, {}) for name in writer.typed}

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
        """Turn aside where an input is not where kernels take it to be; parameters are looked at before."""
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


def table_lines(program: Program, variable: Callable[[str], str]) -> list[str]:
    """Assignments to global names.

    Args:
        program: what the tables say.
        variable: the Python name of each variable.
    """
    rows = _inputs(program, variable)
    if labels := {variable(i.name): i.label for i in program.inputs if i.label}:
        rows.append(f"NAMES = {labels!r}")
    position = {item.name: i for i, item in enumerate(program.inputs)}
    written = {item.name for item in program.inputs if item.mutated}
    checks = tuple((position[c.name], c.size, c.stride, c.name in written) for c in program.checks)
    aligned = tuple(
        (position[i.name], i.alignment, i.mutated, i.static) for i in program.inputs if i.alignment
    )
    if program.recording is not None:
        facts = asdict(program.recording)
        del facts["names"]  # `INPUTS` has them
        rows.append(f"GRAPH = {facts!r}")
    if program.partitions:
        table = tuple((p.name, asdict(p.facts), len(p.inputs)) for p in program.partitions)
        rows.append(f"PARTITIONS = {table!r}")
    if program.series:
        rows += ["SERIES = (", *(line for series in program.series for line in _series(series)), ")"]
    if program.views:
        rows.append(f"VIEWS = {program.views!r}")
    if program.noted:
        rows.append("SEEN = {}")
    if program.computes_alone:
        rows.append("ALONE = True")
    return [*rows, f"CHECKS = {checks!r}", f"ALIGNED = {aligned!r}", f"DEVICE = {program.device!r}"]


def _inputs(program: Program, variable: Callable[[str], str]) -> list[str]:
    """What inputs must be, with an example of each size."""
    hints = dict(program.symbol_hints)

    def example(index: IndexLike) -> int:
        return example_value(index, hints)

    rows = ["INPUTS = ("]
    free = _devices_unchecked(program)
    for item in program.inputs:
        size, stride = tuple(map(example, item.size)), tuple(map(example, item.stride))
        if item.kind == "symint" and item.value is not None:
            size = (example(item.value),)
        device = "" if item.name in free else item.device
        row = (variable(item.name), item.kind, item.dtype, device, size, stride)
        rows.append(f"    {row!r},")
    return [*rows, ")"]


def _series(series: Series) -> list[str]:
    return [
        f"    ({series.name!r}, {len(series.inputs)}, {series.symbols!r}, {series.slots},",
        f"     {series.returns!r}, (",
        *(f"         {row!r}," for row in series.rows),
        "     )),",
    ]


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


def checked_in_turns(program: Program, loop: Loop) -> Mapping[str, AssertLayout]:
    """The checks that each turn may make of what it is given, by the variable that stands for all, instead of
    one for each turn in front of the loop. None where an input would have been written to by then.
    """
    if any(item.mutated for item in program.inputs):
        return {}
    before = program.steps[: loop.start]
    checks = {step.name: step for step in before if isinstance(step, AssertLayout)}
    used = {name for step in before if not isinstance(step, AssertLayout) for name in uses(step)}
    found: dict[str, AssertLayout] = {}
    for column in loop.given:
        layouts = {(item.size, item.stride) for name in column if (item := checks.get(name)) is not None}
        if len(layouts) == 1 and checks.keys() >= set(column) and used.isdisjoint(column):
            found[column[0]] = checks[column[0]]
    return found


def print_loop(
    writer: Writer, loop: Loop, checks: Iterable[Callable[[], None]], body: Callable[[], None]
) -> None:
    """Print a loop.

    In its body, what the loop is given and what is carried from turn to turn have names of their own, since
    what has these names outside may be returned.

    Args:
        checks: print those that a turn makes of what it is given.
        body: prints the steps of a turn.
    """
    line, names, variables = writer.line, writer.names, writer.variables
    writer.flush()
    rows, saved = names.fresh("layers"), names.fresh("results")
    each = {column[0]: names.fresh(f"each_{writer.variable(column[0])}") for column in loop.given}
    before = {name: names.fresh(f"before_{writer.variable(name)}") for name, _ in loop.carried}
    outside = {name: writer.variable(name) for name in (*each, *before)}
    _print_rows(writer, rows, loop)
    if loop.saved:
        line(f"{saved} = []")
    for name, made in before.items():
        line(f"{made} = {outside[name]}" + (f"; del {outside[name]}" if name in loop.moved else ""))
    with writer.block(f"while {rows}:"):
        line(f"{_targets(list(each.values()))}{rows}.pop()")
        variables.update({**each, **before})
        for check in checks:
            check()
        body()
        writer.flush()
        if loop.saved:
            line(f"{saved}.append(({', '.join(map(writer.variable, loop.saved))},))")
        _print_carried(writer, rows, loop)
    for name in before:
        variables[name] = outside[name]
    carried = {new for _, new in loop.carried}
    for name in each:
        variables[loop.outside(name)] = outside[name]
        if name not in carried:
            variables[name] = outside[name]
    for at, name in enumerate(loop.saved):
        for turn in range(loop.count):
            variables[loop.result(name, turn)] = f"{saved}[{turn}][{at}]"


def _print_rows(writer: Writer, rows: str, loop: Loop) -> None:
    """The table of what each turn is given, the last one first, and nothing else that holds it."""
    line = writer.line
    if not loop.given:
        line(f"{rows} = [None] * {loop.count}")
        return
    line(f"{rows} = [")
    for row in reversed(list(zip(*loop.given, strict=True))):
        line(f"    ({', '.join(map(writer.variable, row))},),")
    line("]")
    moved = [writer.variable(name) for column in loop.given if column[0] in loop.moved for name in column]
    if moved:
        line(f"del {', '.join(moved)}")


def _print_carried(writer: Writer, rows: str, loop: Loop) -> None:
    """What the next turn gets from this one; behind the last turn it has the names that it has here."""
    if not loop.carried:
        return
    line, variable = writer.line, writer.variable
    old = [variable(name) for name, _ in loop.carried]
    new = [variable(name) for _, name in loop.carried]
    gone = [variable(made) for name, made in loop.carried if name in loop.moved]
    line(f"if {rows}:")
    line(f"    {', '.join(old)} = {', '.join(new)}" + (f"; del {', '.join(gone)}" if gone else ""))


def _targets(names: Sequence[str]) -> str:
    return f"{', '.join(names)}{',' if len(names) == 1 else ''} = " if names else ""
