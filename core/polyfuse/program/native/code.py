"""A native program while it is made: its steps, its requests, and where each value is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import Opaque, View
from polyfuse.plugin.host import Address, BindSize, Constant, HostStep, MakeRequest, Operand, Request
from polyfuse.program.native.memory import PlainMemory
from polyfuse.program.steps import Allocate, AssertLayout, Conform, Ref, Reuse
from polyfuse.symbolic import Atom, Index, IndexLike, atoms, bounds, symbol
from polyfuse.symbolic.index import as_atom
from polyfuse.torch_compat.tracing import shapes


@dataclass
class NativeCode:
    """What was made of a program's steps so far.

    Attributes:
        constants: keys of the program's constants, by their names in it.
        memory: which of its variables are plain memory.
        numbers: its variables that are integers.
        slots: the variable that now holds what a name of the program stands for, where that is another one.
        addressed: variables whose addresses were fetched.
        symbols: what variables that are numbers are called in sizes.
        origin: which operators the step that is being made comes from.
    """

    constants: Mapping[str, str]
    memory: PlainMemory
    numbers: set[str]
    steps: list[HostStep] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    slots: dict[str, str] = field(default_factory=dict)
    addressed: set[str] = field(default_factory=set)
    symbols: dict[str, Index] = field(default_factory=dict)
    origin: str = ""
    temporaries: int = 0

    def value(self, value: Any, operands: list[str | IndexLike], made: list[str] | None = None) -> Any:
        """An argument in which operands stand for what the program knows, which are put into a list. Names of
        references that are made for it alone are put into `made`.

        Raises:
            UnsupportedError: a size in it is no integer.
        """
        if isinstance(value, Ref):
            if value.name in self.constants:
                return Constant(self.constants[value.name])
            if value.name in self.numbers:
                return self._operand(self._number(value.name), operands)
            return self._operand(self.slot(value.name), operands)
        if isinstance(value, View):
            name = self.temporary("view")
            self.view(value, name)
            self.slots[name] = name
            if made is not None:
                made.append(name)
            return self._operand(name, operands)
        if isinstance(value, Index):
            return self._operand(self._number_of(value, made), operands)
        if isinstance(value, (tuple, list)):
            return tuple(self.value(item, operands, made) for item in value)
        if isinstance(value, Opaque) and not value.text:
            return Constant(value.key)
        return value

    def view(self, view: View, name: str, function: str = "reinterpret_tensor") -> None:
        """A view as a reference of that name."""
        operands: list[str | IndexLike] = []
        base = self.value(Ref(view.buffer), operands)
        size, stride = self.value(view.size, operands), self.value(view.stride, operands)
        args: tuple[Any, ...] = (base, size, stride, self.value(view.offset, operands))
        if view.dtype is not None:
            function, args = "reinterpret_as", (*args, view.dtype.torch)
        self.send("runtime", function, args, operands, (name,))

    def layout(
        self, step: Allocate | AssertLayout | Conform | Reuse, operands: list[str | IndexLike]
    ) -> tuple[Any, Any]:
        """Sizes and strides as arguments."""
        return self.value(step.size, operands), self.value(step.stride, operands)

    def _operand(self, operand: str | IndexLike, operands: list[str | IndexLike]) -> Operand:
        if operand not in operands:
            operands.append(operand)
        return Operand(operands.index(operand))

    def _number(self, name: str) -> Index:
        """The value of a variable that is a number."""
        if name not in self.symbols:
            fresh = self.temporary("number")
            self.steps.append(BindSize(fresh, name))
            self.symbols[name] = symbol(fresh)
        return self.symbols[name]

    def _number_of(self, index: Index, made: list[str] | None) -> str | IndexLike:
        """A size; what only Python computes, because it may be a fraction, as a reference."""
        atom: Atom | None = as_atom(index)
        if made is None or atom is None or atom.kind != "host":
            return self.index(index)
        name = self.temporary("host")
        operands: list[str | IndexLike] = []
        names = tuple(dict.fromkeys(a.name for a in atoms(index) if a.kind == "sym"))
        values = tuple(self.value(symbol(n), operands) for n in names)
        self.send("runtime", "host_number", (atom.name, names, *values), operands, (name,))
        self.slots[name] = name
        made.append(name)
        return name

    def index(self, index: IndexLike) -> IndexLike:
        """A size that can be computed natively: in integers, without a division by nothing.

        Raises:
            UnsupportedError: it cannot.
        """
        for atom in () if isinstance(index, int) else atoms(index):
            if atom.kind == "host" or (atom.kind == "sym" and shapes.named_fraction(atom.name)):
                raise UnsupportedError(f"the size {index} is no integer")
            if atom.kind in ("floordiv", "mod"):
                low, _ = bounds(atom.args[1])
                if low is None or low < 1:
                    raise UnsupportedError(f"the size {index} divides by a number that may be 0")
        return index

    def send(
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
        """Ask the environment for something: what `name` of this kind makes of `args` are the results.

        Args:
            kind, name, args, kwargs: as in `Request`, with positions in `operands` in arguments.
            operands: what the program knows of them: variables, and sizes.
            results: the names of results; empty for one that nobody reads.
            several: results come as a tuple.
            letters: "r" for each result that is a reference, "i" for an integer, "-" for none; empty: as
                `numbers` says.
            subject: what a message of the request is about.
        """
        letters = letters or "".join("-" if not r else "i" if r in self.numbers else "r" for r in results)
        given = "".join("r" if isinstance(o, str) else "i" for o in operands)
        request = Request(kind, name, args, kwargs, given, letters, several, self.origin, subject)
        self.requests.append(request)
        named = tuple(r for r in results if r)
        for result in named:
            self.slots[result] = result
        self.steps.append(MakeRequest(len(self.requests) - 1, tuple(operands), named))

    def slot(self, name: str) -> str:
        """The variable that holds what a name stands for."""
        return self.slots.get(name, name)

    def defined(self, name: str, slot: str = "") -> None:
        """Fetch the address of a new reference if kernels want it."""
        self.addressed.discard(slot or name)
        if name in self.memory.launched:
            self.address(name)

    def address(self, name: str) -> None:
        """Make sure of the address of a variable."""
        slot = self.slot(name)
        if name not in self.memory.plain and slot not in self.addressed:
            self.addressed.add(slot)
            self.steps.append(Address(slot))

    def temporary(self, prefix: str) -> str:
        """The name of a new variable."""
        self.temporaries += 1
        return f"{prefix}.{self.temporaries}"
