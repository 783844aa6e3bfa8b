"""`AtenGraph`: what the frontend hands to the rest of the compiler, and its text, equal in every process."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import sympy
import torch
from torch.fx import GraphModule, Node

from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx, shapes

if TYPE_CHECKING:
    from polyfuse.base.text import PassText


GraphKind: TypeAlias = Literal["inference", "forward", "backward"]
ValueKind: TypeAlias = Literal["tensor", "symbol", "none", "constant", "other"]
BoxedCallable: TypeAlias = Callable[[list[Any]], Sequence[Any]]


class ChannelsLast(enum.IntEnum):
    """Which operands of a convolution have their channels last."""

    NONE = 0
    ACTIVATIONS = 1
    ACTIVATIONS_ALONE = 2
    """Those of a light convolution that is all a graph does with images, too."""
    ALL = 3
    """Its weight, too."""


CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layouts of torch that have them last, by the number of dimensions."""

ReadsNarrow: TypeAlias = Callable[[str], bool]
"""From the type of a device, such as `cpu`, to whether its kernels multiply few rows with a weight as it is
stored."""

ReadsElements: TypeAlias = Callable[[str, str], bool]
"""From the name of an operator that is not torch's and the type of a device to whether it computes element by
element, and its result lies as its first operand does."""

WantsChannelsLast: TypeAlias = Callable[[torch.Tensor, torch.Tensor, bool], ChannelsLast]
"""From the activation and the weight of a convolution, and whether gradients are needed, to what has its
channels last."""


@dataclass(frozen=True, eq=False)
class GraphInput:
    """One placeholder of a graph."""

    index: int
    name: str
    kind: ValueKind
    value: Any
    """The traced value: a fake tensor, a symbolic or plain number, or another object."""
    static: bool
    """Same address in every call: a parameter or buffer."""
    donated: bool
    """Nobody else holds it: its memory may be reused once it is dead."""
    mutated: bool
    """Written back by a trailing `aten.copy_`."""


@dataclass(frozen=True, eq=False)
class GraphOutput:
    """One flat output of a graph."""

    index: int
    kind: ValueKind
    node: str | None
    """Name of the node that makes it; None for constants and None."""
    value: Any
    """The traced value, or the constant itself."""
    saved: bool
    """Saved for the backward: the user never sees it, and relies on its traced strides for all others."""


@dataclass(frozen=True)
class Note:
    """What a rewrite says of the nodes that it changed, for people: a decision of the compiler.

    Attributes:
        kind, first, second, reason: as those of `Decision`.
    """

    kind: str
    first: str
    second: str
    reason: str


@dataclass(frozen=True, eq=False)
class AtenGraph:
    """A functional ATen graph with what the compiler has to know about its inputs and outputs.

    `module` holds fake values in every node's `meta["val"]` and, where known, the user's source line in
    `meta["stack_trace"]`. Mutations of inputs are the trailing `aten.copy_` nodes and nothing else, apart
    from operators that mutate by nature.
    """

    name: str
    kind: GraphKind
    module: GraphModule
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    fake_mode: Any
    shape_env: Any
    rewrites: tuple[tuple[str, int], ...] = ()
    """Rewrites done, by pass."""
    passes: tuple[PassText, ...] = ()
    """The text before and after each pass of the rewrites, where stages are dumped."""
    notes: tuple[Note, ...] = ()
    """What rewrites decided about single nodes."""
    given: int | None = None
    """How many inputs calls pass, where the caller computes those behind from parameters, and others that the
    compiled graph asks for (`packed_inputs`)."""
    packaged: bool = False
    """Whether the program goes into a package, which holds no objects but tensors."""

    def node(self, name: str) -> Node:
        """The node called `name`.

        Raises:
            KeyError: there is none.
        """
        for node in self.module.graph.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


class InnerCompiler(Protocol):
    """The rest of the compiler: a graph in, a boxed callable out.

    The callable takes one list of flat arguments, which it may clear, and returns the flat outputs. It may
    carry `output_strides`, a sequence with one tuple or None an output, when it chose other strides for
    outputs that are `saved`, and `packed_inputs` (`polyfuse.runtime.frozen.PackedInputs`) where it takes
    others than the graph does, whose `given` allows that.
    """

    def __call__(self, graph: AtenGraph, /) -> BoxedCallable: ...


def kind_of(value: Any) -> ValueKind:
    """Sort a traced value."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return "symbol"
    if value is None:
        return "none"
    if isinstance(value, int | float | bool | complex | str | sympy.Basic | torch.dtype | torch.device):
        return "constant"
    return "other"


_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
}


def value_text(value: Any) -> str:
    """`f32[4, s0] strides (s0, 1) cpu` of a tensor; other values as they print."""
    if isinstance(value, torch.Tensor):
        dtype = _SHORT.get(value.dtype, str(value.dtype).removeprefix("torch."))
        size = ", ".join(str(n) for n in shapes.exprs_of(value.shape))
        if value.layout != torch.strided:
            return f"{dtype}[{size}] {value.layout} {value.device}"
        strides = ", ".join(str(n) for n in shapes.exprs_of(value.stride()))
        return f"{dtype}[{size}] strides ({strides}) {value.device}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(value_text(v) for v in value) + ")"
    return str(shapes.expr_of(value))


def graph_text(graph: AtenGraph) -> str:
    """One line a node: name, operator, arguments, value, and the user's source line beside it."""
    lines = [f"graph {graph.name} ({graph.kind})"]
    for item in graph.inputs:
        flags = [
            f
            for f, on in (("static", item.static), ("donated", item.donated), ("mutated", item.mutated))
            if on
        ]
        lines.append(
            f"  input %{item.name}: {value_text(item.value)}{' ' + ' '.join(flags) if flags else ''}"
        )
    for node in graph.module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        lines.append("  " + _node_text(node))
    (result,) = graph.module.graph.output_node().args
    outputs = result if isinstance(result, tuple | list) else (result,)
    returned = ", ".join(_argument(a) for a in outputs)
    lines.append(f"  return {returned}")
    return "\n".join(lines) + "\n"


def _node_text(node: Node) -> str:
    what = f"constant {node.target}" if node.op == "get_attr" else ops.op_name(node.target) + _call_text(node)
    source = fx.source_text(node)
    return f"%{node.name}: {value_text(node.meta.get('val'))} = {what}" + (f"  # {source}" if source else "")


def _call_text(node: Node) -> str:
    parts = [_argument(a) for a in node.args]
    parts.extend(f"{k}={_argument(v)}" for k, v in node.kwargs.items())
    return "(" + ", ".join(parts) + ")"


def _argument(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_argument(v) for v in value) + "]"
    if isinstance(value, torch.fx.GraphModule):
        return "subgraph"
    return repr(value)
