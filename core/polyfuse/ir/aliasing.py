"""Which arguments of a kernel may be one memory: the rule behind `Kernel.aliases`.

An output may take the memory of an input that nobody reads afterwards, if every element is read for the
last time by the very point that writes it. So there is one plain store to the output; every load of the input
is at the element that this store writes, and comes before it; no two points write one element; and a
matmul does not read the input, because its tiles are read by many points.
"""

from __future__ import annotations

from functools import cached_property

from polyfuse.ir.kernel import Alias, Kernel, Section
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Load, Reduce, Store
from polyfuse.symbolic import axis_name, axis_size, free_axes

_Position = tuple[int, int]


class AliasRule:
    """The rule for one kernel: what it needs to know is looked up once for all pairs."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._args = {arg.name: arg for arg in kernel.args}
        self._stores: dict[str, list[tuple[_Position, Section, Store]]] = {}
        self._loads: dict[str, list[tuple[_Position, Load]]] = {}
        for number, section in enumerate(kernel.sections):
            for position, stmt in enumerate(section.body):
                match stmt:
                    case Load():
                        self._loads.setdefault(stmt.buffer, []).append(((number, position), stmt))
                    case Store():
                        self._stores.setdefault(stmt.buffer, []).append(((number, position), section, stmt))

    def fault(self, alias: Alias) -> str:
        """Why the two arguments of a pair cannot be one memory; empty where they can."""
        for name, kind in ((alias.output, "out"), (alias.input, "in")):
            if name not in self._args:
                return f"alias names {name!r}, which is no argument"
            if self._args[name].kind != kind:
                return f"alias names {name!r} as {kind}, and it is declared as {self._args[name].kind}"
        output, source = self._args[alias.output], self._args[alias.input]
        if output.dtype is not source.dtype or output.numel != source.numel:
            return f"alias of {alias.output!r} and {alias.input!r}, which differ in type or extent"
        stores = self._stores.get(alias.output, [])
        if len(stores) != 1:
            return f"alias of {alias.output!r}, which is stored to by {len(stores)} statements"
        at, section, store = stores[0]
        fault = self._store_fault(section, store)
        if fault:
            return f"alias of {alias.output!r}, {fault}"
        for where, load in self._loads.get(alias.input, ()):
            if load.indirect or load.index != store.index:
                return f"alias of {alias.input!r}, which is read elsewhere than {alias.output!r} is written"
            if where > at:
                return f"alias of {alias.input!r}, which is read after {alias.output!r} is written"
        if alias.input in self._operands:
            return f"alias of {alias.input!r}, which is an operand of a matmul"
        return ""

    def _store_fault(self, section: Section, store: Store) -> str:
        if store.indirect or store.mode != "set" or store.mask is not None:
            return "which is not stored to plainly"
        axes = self._kernel.axes + (self._kernel.raxes if section.looped else ())
        missing = {axis_name(a) for a in axes if axis_size(a) != 1}.difference(free_axes(store.index))
        return f"of which several points along {min(missing)} write one element" if missing else ""

    @cached_property
    def _operands(self) -> frozenset[str]:
        """Arguments from which the operands of matmuls are computed."""
        statements = [stmt for section in self._kernel.sections for stmt in section.body]
        made = {target: stmt for stmt in statements for target in stmt.targets}
        pending = [
            name
            for stmt in statements
            if isinstance(stmt, Reduce) and stmt.kind in CONTRACTIONS
            for name in stmt.args
        ]
        seen: set[str] = set()
        found: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen or name not in made:
                continue
            seen.add(name)
            stmt = made[name]
            if isinstance(stmt, Load):
                found.add(stmt.buffer)
            pending.extend(stmt.args)
        return frozenset(found)


def permitted_aliases(kernel: Kernel) -> tuple[Alias, ...]:
    """Pairs of arguments that may be one memory, each argument at most once, in the order of the outputs."""
    rule = AliasRule(kernel)
    found: list[Alias] = []
    inputs = [arg.name for arg in kernel.args if arg.kind == "in"]
    for output in (arg.name for arg in kernel.args if arg.kind == "out"):
        source = next((name for name in inputs if not rule.fault(Alias(output, name))), None)
        if source is not None:
            found.append(Alias(output, source))
            inputs.remove(source)
    return tuple(found)
