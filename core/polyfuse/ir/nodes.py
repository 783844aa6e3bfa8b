"""Graph-level nodes: what lowering makes and the scheduler orders and fuses.

A node is data. Loop nodes (`Pointwise`, `Reduction`, `Scan`, `Scatter`) hold scalar expressions over their
own axis variables; call nodes (`ExternCall`, `TemplateCall`) name an operator. A node list is in program
order, and a buffer may be written by several nodes in turn: the later write is a new version of the same
storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.symbolic import Index, IndexLike, axis_size, product, storage_size

if TYPE_CHECKING:
    from polyfuse.ir.expr import Expr
    from polyfuse.ir.types import DType


@dataclass(frozen=True)
class View:
    """A strided window on a buffer: sizes, strides and offset in elements. `dtype` is the buffer's own unless
    bits are reinterpreted at equal width."""

    buffer: str
    size: tuple[IndexLike, ...]
    stride: tuple[IndexLike, ...]
    offset: IndexLike = 0
    dtype: DType | None = None


@dataclass(frozen=True)
class Buffer:
    """Storage with a layout.

    Attributes:
        name: unique in its graph.
        dtype: IR type; None for a value that only extern calls touch (complex, quantised): see `torch_dtype`.
        device: torch device as text, ``"cpu"``, ``"cuda:0"``.
        size, stride: layout in elements; offset is zero.
        torch_dtype: torch's dtype as text without ``torch.``.
        kind: ``"input"``, ``"constant"``, ``"temp"``, ``"status"`` (of checks: zero until one
            stores, see `ops.CHECK_MODE`), or ``"object"`` (a value that is not one tensor).
    """

    name: str
    dtype: DType | None
    device: str
    size: tuple[IndexLike, ...]
    stride: tuple[IndexLike, ...]
    torch_dtype: str
    kind: str = "temp"

    @property
    def numel(self) -> IndexLike:
        """Number of elements."""
        return product(self.size)

    @property
    def storage(self) -> IndexLike:
        """Elements of memory that the layout spans."""
        return storage_size(self.size, self.stride)

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 1 of what is no tensor."""
        if self.dtype is not None:
            return self.dtype.itemsize
        return int(getattr(getattr(torch, self.torch_dtype, None), "itemsize", 1))

    def view(self) -> View:
        """The whole buffer."""
        return View(self.name, self.size, self.stride)


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: ATen operator, FX node name, and the line of the user's source."""

    op: str
    fx: str
    source: str = ""


@dataclass(frozen=True)
class Node:
    """The base class of nodes. `name` is unique in the graph."""

    name: str
    origins: tuple[Origin, ...] = field(default=(), kw_only=True, compare=False)

    def writes(self) -> tuple[str, ...]:
        """Buffers this node writes, new and mutated."""
        raise TypeError(f"{type(self).__name__} is abstract")


@dataclass(frozen=True)
class LoopNode(Node):
    """A node with an iteration space of its own.

    Attributes:
        axes: parallel axis variables, outermost first.
        raxes: reduction (or scan) axis variables, outermost first; empty where nothing is carried.
    """

    axes: tuple[Index, ...]
    raxes: tuple[Index, ...]

    def expressions(self) -> tuple[Expr, ...]:
        """Every scalar expression of the node."""
        raise TypeError(f"{type(self).__name__} is abstract")

    @property
    def sizes(self) -> tuple[IndexLike, ...]:
        """Extents of the parallel axes."""
        return tuple(axis_size(a) for a in self.axes)

    @property
    def rsizes(self) -> tuple[IndexLike, ...]:
        """Extents of the reduction axes."""
        return tuple(axis_size(a) for a in self.raxes)


@dataclass(frozen=True)
class Pointwise(LoopNode):
    """``output[index] = value`` at every point. `raxes` is empty. `output` may be an existing buffer (a
    mutation)."""

    output: str
    index: IndexLike
    value: Expr

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def expressions(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True)
class Reduction(LoopNode):
    """``outputs[i][index] = kind(values over raxes)[i]`` (kinds: `ops.REDUCTIONS`). An unused result has
    output ``""``."""

    outputs: tuple[str, ...]
    index: IndexLike
    kind: str
    values: tuple[Expr, ...]

    def writes(self) -> tuple[str, ...]:
        return tuple(o for o in self.outputs if o)

    def expressions(self) -> tuple[Expr, ...]:
        return self.values


@dataclass(frozen=True)
class Scan(LoopNode):
    """Inclusive scan along the one axis of `raxes` (kinds: `ops.SCANS`); `index` is over axes and raxes."""

    outputs: tuple[str, ...]
    index: IndexLike
    kind: str
    values: tuple[Expr, ...]

    def writes(self) -> tuple[str, ...]:
        return tuple(o for o in self.outputs if o)

    def expressions(self) -> tuple[Expr, ...]:
        return self.values


@dataclass(frozen=True)
class Scatter(LoopNode):
    """``target[index] mode= value`` at every point, where `index` names the values of `indirect` as ``@0``,
    ``@1``, ...

    `target` is an existing buffer that is mutated. Points may collide: combining modes are atomic, and
    ``set`` keeps any one of the colliding values. Where `mask` is false nothing is stored. With a mode of
    `ops.GROUP_MODES`, `target` is a buffer that held nothing before, and each of its elements is stored to.
    """

    target: str
    index: IndexLike
    indirect: tuple[Expr, ...]
    value: Expr
    mode: str = "set"
    mask: Expr | None = None

    def writes(self) -> tuple[str, ...]:
        return (self.target,)

    def expressions(self) -> tuple[Expr, ...]:
        return (self.value, *self.indirect, *(() if self.mask is None else (self.mask,)))


@dataclass(frozen=True)
class SymbolPath:
    """Where the results of a call give the value of an unbacked symbol; as text ``item:K``, ``size:K:DIM`` or
    ``stride:K:DIM``.

    Attributes:
        kind: ``"item"`` (the result is the number), or ``"size"`` or ``"stride"`` of a tensor.
        result: number of the result.
        dim: of the tensor.
    """

    kind: str
    result: int
    dim: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.result}" + ("" if self.kind == "item" else f":{self.dim}")

    @staticmethod
    def of(text: str) -> SymbolPath:
        """The path that a text says.

        Raises:
            ValueError: the text says none.
        """
        kind, *numbers = text.split(":")
        if len(numbers) != {"item": 1, "size": 2, "stride": 2}.get(kind):
            raise ValueError(f"{text!r} names no number among results")
        return SymbolPath(kind, *map(int, numbers))


@dataclass(frozen=True)
class ExternCall(Node):
    """An eager operator.

    Attributes:
        op: ``"aten.mm.default"``-style name, or ``"object.KEY"``: an entry of the graph's object table is
            called; ``"frozen."`` or ``"checked."`` before a name: called once for each parameter, the first
            argument, and again when that has changed; ``"frozen.together."``: for a tuple of parameters, with
            a tuple of the other arguments of each.
        args, kwargs: nested tuples of `View`, `Index`, ints, floats, strings, None, and `Opaque` values.
        outputs: buffer per result, ``""`` where unused; one for a single tensor.
        out: how results come: ``"single"``, ``"tuple"`` (a tuple or list of results), ``"out"`` (the one
            output is preallocated and passed as ``out=``), ``"into"`` (the outputs are preallocated, hold
            nothing yet and stand among the arguments), ``"none"`` (called for its effect).
        mutates: existing buffers whose content it changes.
        aliases: buffers its outputs may share storage with.
        ordered: whether it has an effect besides its outputs (random numbers, prints), so that it keeps its
            position among ordered nodes and is never removed.
        symbols: unbacked shape symbols that its results define, by name, and where to read each.
        fallback: whether this is an op the compiler has no lowering for (counted), rather than a chosen
            library call.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]
    out: str = "single"
    mutates: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    ordered: bool = False
    symbols: tuple[tuple[str, SymbolPath], ...] = ()
    fallback: bool = False

    def writes(self) -> tuple[str, ...]:
        return tuple(o for o in self.outputs if o) + self.mutates


ROWS_APART = frozenset({"aten.mm.out", "aten.addmm.out"})
"""Operators that write a matrix whose rows lie apart as fast as one whose rows follow each other."""


ADDS_IN_PLACE = frozenset({"aten.addmm.out", "aten.baddbmm.out"})
"""Operators that add a matmul to their first argument, which may be the result's own memory."""


OBJECT_CALL = "object."
"""Prefix of `ExternCall.op` where what is called is an entry of the object table, not a named operator."""

RAISE = "polyfuse.raise_failed"
"""Call that looks at a status to which stores of `ops.CHECK_MODE` were made, and raises if there were any.
Its arguments are the status, and for each element of it the name of a built-in exception, a text, and a size;
in the text, `{index}` and `{size}` stand for the number that was stored and for that size."""


@dataclass(frozen=True)
class TemplateCall(ExternCall):
    """An extern call that plugins may offer other implementations for (matmuls, convolution,
    attention)."""


@dataclass(frozen=True)
class Collective(ExternCall):
    """The start of communication with other processes. What it writes is complete, and what it reads may be
    written to, only after a `Wait` for it. It is never removed, and collectives of one group keep their
    order: other processes have the same one.

    Attributes:
        group: name of the group of processes.
    """

    group: str = ""


@dataclass(frozen=True)
class Wait(ExternCall):
    """The end of collectives: all that they wrote, its `mutates`, is complete from here on. Waiting for one
    result of a collective is waiting for all of them.

    Attributes:
        holds: buffers that they read or write until then.
    """

    holds: tuple[str, ...] = ()


CALLS: Mapping[str, type[ExternCall]] = {
    "template": TemplateCall,
    "collective": Collective,
    "wait": Wait,
    "extern": ExternCall,
}
"""The word for each kind of call in texts; the most general comes last."""


@dataclass(frozen=True)
class Opaque:
    """A host value that generated code gets by name: dtypes, devices, layouts, memory formats, generators,
    modules.

    `text` is host text where one exists (``torch.float32``); otherwise `key` names an entry of the graph's
    object table.
    """

    text: str = ""
    key: str = ""
