"""The Graph: buffers, nodes in program order, inputs and outputs. The data between lowering and
scheduling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import Buffer, ExternCall, LoopNode, Node, Scatter, View, Wait
from polyfuse.ir.ops import CHECK_MODE, GROUP_MODES

if TYPE_CHECKING:
    from polyfuse.symbolic import IndexLike

MAY_WAIT = 1 << 20
"""Bytes that may always stay in memory for what comes later: of results of calls that are added up by one
kernel, and of what a fusion holds."""


@dataclass(frozen=True)
class GraphInput:
    """One positional input.

    Attributes:
        name: variable name; the buffer's name for tensors, the placeholder's name otherwise.
        kind: ``"tensor"``, ``"symint"``, ``"object"`` (passed through to extern calls untouched), ``"none"``.
        value: the index that a symint input stands for.
        static: whether it is a parameter or buffer of the model, at the same address in every call.
        address: what is known of a tensor's address: ``"aligned"`` (a multiple of what devices ask for),
            ``"traced"`` (so it was when traced, and it has to be checked), ``"any"``.
        label: what messages call it, where that is not its name.
    """

    name: str
    kind: str
    value: IndexLike | None = None
    static: bool = False
    address: str = "traced"
    label: str = ""


@dataclass(frozen=True)
class GraphOutput:
    """One result.

    Attributes:
        value: a `View` of a buffer, a size (`Index` or number), None, or a host object of the object table.
        saved: whether it is saved for the backward; the caller never sees it.
        again: position of the earlier result that is this very tensor, not another one with its elements.
    """

    value: Any
    kind: str = "tensor"
    saved: bool = False
    again: int | None = None


@dataclass(frozen=True)
class Uses:
    """Where the nodes of a graph read and write buffers: positions, in program order. What asks this for each
    call of a graph by a pass of its own takes the square of its length.

    Attributes:
        position: of each node, by its name.
        readers, writers: of each buffer that is read or written, by its name.
    """

    position: Mapping[str, int]
    readers: Mapping[str, Sequence[int]]
    writers: Mapping[str, Sequence[int]]

    def touching(self, name: str) -> list[int]:
        """The nodes that read or write a buffer, each once."""
        return sorted({*self.readers.get(name, ()), *self.writers.get(name, ())})

    def written_between(self, names: Iterable[str], after: int, before: int) -> bool:
        """Whether a node between two others writes one of some buffers."""
        return any(after < at < before for name in names for at in self.writers.get(name, ()))


@dataclass(frozen=True)
class Graph:
    """A lowered graph.

    Attributes:
        name: unique in the process, used in reports and dumps.
        kind: ``"inference"``, ``"forward"``, ``"backward"``, or ``"subgraph"``.
        inputs, outputs: in calling order.
        buffers: every buffer by name, inputs and constants included.
        nodes: program order.
        objects: host values by key (constant tensors, operators, generators); never part of the text.
        symbol_hints: example values of shape symbols.
    """

    name: str
    kind: str
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    buffers: dict[str, Buffer]
    nodes: tuple[Node, ...]
    objects: dict[str, Any] = field(default_factory=dict, compare=False)
    symbol_hints: dict[str, int] = field(default_factory=dict)

    @cached_property
    def uses(self) -> Uses:
        """Where its buffers are read and written, found in one pass."""
        readers: dict[str, list[int]] = {}
        writers: dict[str, list[int]] = {}
        for at, node in enumerate(self.nodes):
            for name in reads(node):
                readers.setdefault(name, []).append(at)
            for name in dict.fromkeys(node.writes()):
                writers.setdefault(name, []).append(at)
        return Uses({node.name: at for at, node in enumerate(self.nodes)}, readers, writers)

    def output_buffers(self) -> tuple[str, ...]:
        """Buffers that results are views of, in order, each once."""
        return tuple(self._outputs)

    def is_output(self, name: str) -> bool:
        """Whether a result is a view of a buffer."""
        return name in self._outputs

    @cached_property
    def _outputs(self) -> dict[str, None]:
        return dict.fromkeys(o.value.buffer for o in self.outputs if isinstance(o.value, View))

    def mutated_inputs(self) -> tuple[str, ...]:
        """Inputs (and constants) that some node writes, in order of first write."""
        written = [b for n in self.nodes for b in n.writes() if self.buffers[b].kind in ("input", "constant")]
        return tuple(dict.fromkeys(written))


def views_in(value: Any) -> Iterator[View]:
    """Every `View` in a nested argument."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from views_in(item)


def reads(node: Node) -> tuple[str, ...]:
    """Buffers `node` reads, in order, each once. A combining scatter reads its target too.

    Raises:
        TypeError: the node is of a kind without a rule.
    """
    if isinstance(node, LoopNode):
        names = [e.buffer for e in loads(*node.expressions())]
        if isinstance(node, Scatter) and node.mode not in (*GROUP_MODES, CHECK_MODE):
            names.append(node.target)
        return tuple(dict.fromkeys(names))
    if isinstance(node, ExternCall):
        found = [v.buffer for v in views_in((node.args, tuple(v for _, v in node.kwargs)))]
        if node.out == "into":
            found = [name for name in found if name not in node.outputs]
        held = node.holds if isinstance(node, Wait) else ()
        return tuple(dict.fromkeys([*found, *node.mutates, *held]))
    raise TypeError(f"reads() does not know {type(node).__name__}; add its rule beside the others")
