"""The host program as data: what happens, in order, when a compiled graph is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Origin, View
from polyfuse.runtime.frozen import CHECKED, FROZEN, has_checksum
from polyfuse.runtime.graphs.replay import GraphFacts
from polyfuse.symbolic import IndexLike, product

_MANY_LAUNCHES = 10
"""Launches from which on a program's kernels get threads of their own."""

_ONE_THREAD = 1 << 15
"""Numbers up to which torch's operators on the CPU use one thread."""


@dataclass(frozen=True)
class Ref:
    """A variable of the program, where an operand or a result is meant."""

    name: str


@dataclass(frozen=True)
class Read:
    """An integer that the program reads from one of its variables.

    Attributes:
        kind: ``"value"`` (the variable is a number), ``"size"`` or ``"stride"`` of a tensor.
        name: the variable.
        dim: dimension of a size or stride.
    """

    kind: str
    name: str
    dim: int = 0


@dataclass(frozen=True)
class Step:
    """What all steps share: the graph operators it comes from."""

    origins: tuple[Origin, ...] = field(default=(), kw_only=True, compare=False)


@dataclass(frozen=True)
class BindSymbol(Step):
    """Give a shape symbol its value: the `power`-th root of ``(read - offset) // factor``."""

    symbol: str
    read: Read
    factor: IndexLike = 1
    offset: IndexLike = 0
    power: int = 1

    @property
    def is_copy(self) -> bool:
        """Whether the symbol is the very number that is read."""
        return self.read.kind == "value" and (self.factor, self.offset, self.power) == (1, 0, 1)


@dataclass(frozen=True)
class AssertLayout(Step):
    """Check that an input has the layout it was compiled for."""

    name: str
    size: tuple[IndexLike, ...]
    stride: tuple[IndexLike, ...]

    @property
    def has_strides(self) -> bool:
        """Whether the input surely has strides: zeros describe tensors without, and expanded ones, too."""
        return not self.stride or any(n != 0 for n in self.stride)


@dataclass(frozen=True)
class AssertFinite(Step):
    """Check that a tensor holds neither NaN nor infinity; `label` says in a message what it is."""

    name: str
    label: str


@dataclass(frozen=True)
class Allocate(Step):
    """Make an uninitialised tensor; `cached`: at least that size, in memory that stays between calls;
    `status`: of zeros, to which checks store.
    """

    name: str
    size: tuple[IndexLike, ...]
    stride: tuple[IndexLike, ...]
    dtype: str
    device: str
    cached: bool = False
    status: bool = False


@dataclass(frozen=True)
class KeepMemory(Step):
    """Give the memory of a tensor that was allocated so back, for the next call."""

    name: str


@dataclass(frozen=True)
class Reuse(Step):
    """Give the storage of `old`, whose value is dead, to `new`. Afterwards `old` is no longer a variable.

    `same_layout` says that the sizes and strides are equal too, so that only the name changes.
    """

    new: str
    old: str
    size: tuple[IndexLike, ...]
    stride: tuple[IndexLike, ...]
    same_layout: bool


@dataclass(frozen=True)
class Free(Step):
    """Forget variables, so that memory which nobody else holds is released."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class MakeView(Step):
    """Bind a view that several later steps use, or a result.

    Attributes:
        result: whether it is one for which the caller's autograd is to know what is written through other
            results that share its memory.
    """

    name: str
    view: View
    result: bool = False


@dataclass(frozen=True)
class LaunchKernel(Step):
    """Run a generated kernel: `kernel` names an entry of the program's kernel table. `device` is the one to
    be current meanwhile, where that is not the program's own.
    """

    kernel: str
    operands: tuple[str | IndexLike, ...]
    device: str = ""


@dataclass(frozen=True)
class ExternStep(Step):
    """Call an eager operator.

    Attributes:
        op: operator name.
        args, kwargs: nested tuples of `Ref`, `View` (made on the spot), sizes, plain values and `Opaque`.
        outputs: variable for each result, ``""`` where a result is not wanted.
        out: ``"single"``, ``"tuple"``, ``"out"`` (the output is passed as ``out=``) or ``"none"``.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]
    out: str


@dataclass(frozen=True)
class RaiseFailed(Step):
    """Raise if a kernel stored to a status that a check failed.

    Attributes:
        name: the status, an i64 for each row.
        rows: name of a built-in exception, text and size of each, as `ir.nodes.RAISE` has them.
        last: whether nobody uses it any more, so that another call may have it if it is still zero.
    """

    name: str
    rows: tuple[tuple[str, str, IndexLike], ...]
    last: bool = False


@dataclass(frozen=True)
class Conform(Step):
    """Check that an operator returned the layout that was predicted for it; copy into that layout if not.
    With `alignment`, its address must be a multiple of so many bytes; with `dtype`, its type that one.
    """

    name: str
    size: tuple[IndexLike, ...]
    stride: tuple[IndexLike, ...]
    alignment: int = 0
    dtype: str = ""


@dataclass(frozen=True)
class Synchronize(Step):
    """Wait until a device has done all that was launched."""

    device: str


@dataclass(frozen=True)
class Observe(Step):
    """Hand a value to the observer of intermediate values, if one is registered."""

    name: str
    label: str


@dataclass(frozen=True)
class Return(Step):
    """Return results: `Ref`, `View`, sizes, plain values, `Opaque`."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class ProgramInput:
    """One positional input.

    Attributes:
        name: variable.
        kind: ``"tensor"``, ``"symint"``, ``"object"`` or ``"none"``.
        size, stride, dtype, device: what a tensor must be; dtype is torch's, without ``torch.``.
        static: whether it has the same address in every call.
        alignment: bytes of which kernels take its address to be a multiple; 0 where that is sure.
        mutated: whether the program writes to it.
        value: the size that a symint stands for.
        label: what messages call it.
    """

    name: str
    kind: str
    size: tuple[IndexLike, ...] = ()
    stride: tuple[IndexLike, ...] = ()
    dtype: str = ""
    device: str = ""
    static: bool = False
    alignment: int = 0
    mutated: bool = False
    value: IndexLike | None = None
    label: str = ""

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.label or self.name


@dataclass(frozen=True)
class ProgramKernel:
    """An entry of the kernel table.

    Attributes:
        name: the function's name in the program.
        kernel: what it runs.
        backend: the backend that claimed it.
        launches: names of the schedule's launches that call it, in order.
    """

    name: str
    kernel: Kernel
    backend: str
    launches: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Consecutive steps of a program that are a function of their own.

    Attributes:
        name: of the function.
        start, end: the steps.
        inputs: variables that it is given, and may forget.
        symbols: shape symbols that it is given behind these.
        results: variables that later steps read.
        dead: variables from before it that no later step has.
        lost: variables of its own that later steps only forget.
    """

    name: str
    start: int
    end: int
    inputs: tuple[str, ...]
    symbols: tuple[str, ...]
    results: tuple[str, ...]
    dead: tuple[str, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True)
class Partition(Part):
    """Consecutive steps that are a function of their own, so that they can be recorded.

    Attributes:
        facts: what a recording of it has to know; numbers stand behind the other inputs.
    """

    facts: GraphFacts


SeriesSize = int | str
"""A number, or its text over the symbols of a series."""

SeriesRow = tuple[Any, ...]
"""A step of a series, as literals. Variables are slots, numbers from 0 on, the inputs first:

* ``("memory", slot, bytes)``: take memory that is no tensor;
* ``("tensor", slot, size, stride, dtype)``: make a tensor;
* ``("view", slot, of, size, stride)``: a tensor in the storage of another;
* ``("part", slot, of, offset, size, stride, dtype)``: a tensor so many of its elements behind the start of
  another one, on the host of a block;
* ``("free", slot)``: forget what is there;
* ``("launch", kernel, operands)``: a slot, or the text of a number, for each argument;
* ``("matmul", dtype, sizes, activation, out, left, right, bias)``: a library's matmul, as
  `polyfuse.program.library_matmuls` has it; an operand is its slot, offset in bytes, whether neighbours are
  of one column, and elements from one row (or column) and from one matrix to the next, a bias its slot and
  offset, or None.
"""


@dataclass(frozen=True)
class Series(Part):
    """Steps that launch kernels and manage their memory, as a table besides.

    Attributes:
        rows: the table.
        slots: how many slots there are.
        returns: slots of the results.
    """

    rows: tuple[SeriesRow, ...]
    slots: int
    returns: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """Steps that are done several times, each time with other variables.

    Attributes:
        start, end: the steps.
        count: how many turns.
        given: variables from before, one for each turn; in the steps, the first one of each stands for all.
        carried: of variables from before that the steps read, and that they do not make: what the steps make,
            or are given, for the next turn to read instead.
        moved: what nobody has any more but the turn that it is for, of both.
        saved: what the steps make that is a result of the program in each turn, as `result` names it.
    """

    start: int
    end: int
    count: int
    given: tuple[tuple[str, ...], ...]
    carried: tuple[tuple[str, str], ...]
    moved: tuple[str, ...]
    saved: tuple[str, ...]

    @staticmethod
    def result(name: str, turn: int) -> str:
        """The variable that holds what was saved of one turn."""
        return f"{name}[{turn}]"

    @staticmethod
    def outside(name: str) -> str:
        """The variable that the first turn is given, where `name` is what the last one was."""
        return f"{name}[]"


@dataclass(frozen=True)
class Program:
    """A host program.

    Attributes:
        name, kind: of the graph.
        inputs: in calling order.
        checks: layout checks of static inputs, made at the first call only.
        steps: in order; the last is `Return`.
        kernels: every kernel once.
        constants: (variable, key of the object table) of constant tensors.
        device: the device to be current while the program runs; ``""`` if all is on the CPU.
        profile: whether launches are marked for the profiler.
        symbol_hints: example values of shape symbols.
        recording: what a recording of its work has to know; None if it is not to be recorded.
        partitions: what is recorded instead of the whole where that cannot be, or fails, in order.
        views: (result, input) for each result of a forward that is part of an input, as autograd must know.
        noted: symbols whose values, which data decide, each call leaves in the table `SEEN`.
        series: launches that one call of a launcher can carry out, in order; none where there are partitions.
        loop: steps that stand for those of several layers; only the text of such a program is of use.
    """

    name: str
    kind: str
    inputs: tuple[ProgramInput, ...]
    checks: tuple[AssertLayout, ...]
    steps: tuple[Step, ...]
    kernels: tuple[ProgramKernel, ...]
    constants: tuple[tuple[str, str], ...] = ()
    device: str = ""
    profile: bool = False
    symbol_hints: tuple[tuple[str, int], ...] = ()
    recording: GraphFacts | None = None
    partitions: tuple[Partition, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    noted: tuple[str, ...] = ()
    series: tuple[Series, ...] = ()
    loop: Loop | None = None

    @property
    def has_partitioned_form(self) -> bool:
        """Whether the partitions are used only once recording the whole has failed."""
        return bool(self.partitions) and self.recording is not None and not self.recording.refused

    @property
    def computes_alone(self) -> bool:
        """Whether kernels do all that takes time on the host, and are so many that it pays to give them
        threads of their own: those of operators that ran before may be busy waiting for a while.
        """
        if self.device or len(self.launches()) < _MANY_LAUNCHES:
            return False
        inputs = {item.name: item for item in self.inputs}

        def is_light(step: ExternStep) -> bool:
            if step.op.startswith(FROZEN):  # once for each parameter
                return True
            if step.op.startswith(CHECKED) and has_checksum():  # by the same threads
                return True
            if not step.op.startswith(CHECKED) or not isinstance(step.args[0], Ref):
                return False
            weight = inputs.get(step.args[0].name)
            size = product(weight.size) if weight is not None else None
            return isinstance(size, int) and size <= _ONE_THREAD

        return all(is_light(step) for step in self.steps if isinstance(step, ExternStep))

    def launches(self) -> tuple[LaunchKernel, ...]:
        """The kernel launches, in order."""
        return tuple(s for s in self.steps if isinstance(s, LaunchKernel))
