"""What graph rewrites share: counting with fuel, safe replacement, new nodes, comparison of values.

A rewrite must not change what the caller can observe of storage. Removing a copy makes two values share
memory, so it asks `Rewriting.may_share` first: an output must stay distinct from inputs, constants and other
outputs, and a value written back to an input must not be that input.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node

from polyfuse.base.settings import Settings
from polyfuse.frontend.describe import alias_root, mutated_nodes, output_args, output_node
from polyfuse.frontend.graph import Note
from polyfuse.torch_compat import ops, refusals
from polyfuse.torch_compat.tracing import fake, fx, shapes

Stage: TypeAlias = Literal["joint", "inference", "forward", "backward"]
Pass: TypeAlias = Callable[["Rewriting"], int]

aten = torch.ops.aten


@dataclass
class Rewriting:
    """The state of rewriting one graph; passed to every pass."""

    module: GraphModule
    settings: Settings
    stage: Stage
    fuel: int | None = None
    """Rewrites left; None: no limit."""
    notes: list[Note] = field(default_factory=list)
    """The messages of rewrites."""
    parameters: frozenset[Node] = frozenset()
    """Inputs that are parameters or buffers of the model, whose address never changes."""
    lowered_elsewhere: Callable[[Rewriting, Node], bool] = field(
        default=lambda state, node: False, repr=False
    )
    """Whether a plugin lowers a call."""
    _escaping: frozenset[Node] | None = field(default=None, repr=False)

    @property
    def graph(self) -> Graph:
        """The graph being rewritten."""
        return self.module.graph

    def nodes(self) -> list[Node]:
        """Calls in order; a snapshot, so a pass may change the graph while it walks."""
        return [n for n in self.graph.nodes if n.op == "call_function"]

    def spend(self) -> bool:
        """Ask to do one rewrite; False once the fuel is used up."""
        if self.fuel is None:
            return True
        if self.fuel <= 0:
            return False
        self.fuel -= 1
        return True

    def replace(self, node: Node, replacement: Node) -> None:
        """Let every user of `node` read `replacement`, and drop `node`."""
        # what does not escape takes nothing along
        if self._escaping is not None and alias_root(node) in self._escaping:
            self._escaping = None
        node.replace_all_uses_with(replacement)
        self.graph.erase_node(node)

    def replace_each(self, find: Callable[[Node], Node | Callable[[], Node] | None]) -> int:
        """Replace every call by what `find` gives for it: another node, or a function that makes one, called
        while fuel is left. None leaves the call. Returns how many were replaced.
        """
        count = 0
        for node in self.nodes():
            found = find(node)
            if found is not None and self.spend():
                self.replace(node, found if isinstance(found, Node) else found())
                count += 1
        return count

    def call_before(
        self, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Node:
        """A new call instead of `node`, inheriting its origin, with its value computed on fake tensors."""
        mode = fake.detect_fake_mode([node.meta.get("val")])
        with self.graph.inserting_before(node):
            return traced_call(self.graph, mode, node, target, args, kwargs)

    def constant_before(self, node: Node, value: torch.Tensor, fake_value: Any) -> Node:
        """A node reading a new constant of the module, instead of `node`."""
        name = fx.constant_name(self.module, "_folded_constant")
        fx.set_constant(self.module, name, value)
        with self.graph.inserting_before(node):
            new = self.graph.get_attr(name)
        _inherit(new, node, fake_value)
        return new

    def escaping(self) -> frozenset[Node]:
        """Owners of storage that the caller gets, or that is written back to an input."""
        if self._escaping is None:
            found = {alias_root(a) for a in output_node(self.module).all_input_nodes}
            for node in self.nodes():
                if mutated_nodes(node):
                    found.update(alias_root(a) for a in node.all_input_nodes)
            self._escaping = frozenset(found)
        return self._escaping

    def forget_escaping(self) -> None:
        """Look again for what escapes: something else does than before."""
        self._escaping = None

    def escapes(self, node: Node) -> bool:
        """True if the caller gets `node` or a view of it."""
        return alias_root(node) in self.escaping()

    def may_share(self, copy: Node, source: Node) -> bool:
        """May `copy`, a fresh copy of `source`, become `source` itself?"""
        value, original = tensor_value(copy), tensor_value(source)
        if value is None or original is None or not keeps_offset(copy, value, original.storage_offset()):
            return False
        if not self.escapes(copy):
            return True
        if self.stage == "joint":
            # What escapes here may also be saved for the backward, and the user may write to it in between.
            return False
        root = alias_root(source)
        return (
            root.op == "call_function"
            and root not in self.escaping()
            and not ops.facts(root.target).is_higher_order
        )

    def may_return(self, source: Node) -> bool:
        """May `source` be returned in place of a view of it, so far the only part of it returned?"""
        root = alias_root(source)
        if self.stage == "joint" or root.op != "call_function" or ops.facts(root.target).is_higher_order:
            return False
        shown = [root]  # and its views, each of which has one first argument
        for node in shown:
            views = (user for user in node.users if user.op == "call_function")
            shown.extend(v for v in views if v.all_input_nodes[0] is node and alias_root(v) is root)
        results = self.returned()
        return sum(results.count(node) for node in shown if self.is_output(node)) == 1

    def returned(self) -> tuple[Node, ...]:
        """Nodes among the graph's outputs, repeated ones repeated."""
        return tuple(a for a in output_args(self.module) if isinstance(a, Node))

    def is_output(self, node: Node) -> bool:
        """True if `node` itself is returned."""
        return output_node(self.module) in node.users


def traced_call(
    graph: Graph,
    mode: Any,
    origin: Node,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Node:
    """A new call at the graph's point of insertion, with its value computed on fake tensors.

    Args:
        mode: the fake mode of the graph's traced values.
        origin: the node whose source location the call is said to have.
    """
    kwargs = kwargs or {}
    new = graph.call_function(target, args, kwargs)
    _inherit(new, origin, fake.fake_evaluate(mode, target, fx.value_of(args), fx.value_of(kwargs)))
    return new


def _inherit(new: Node, origin: Node, value: Any) -> None:
    new.meta = {k: v for k, v in origin.meta.items() if k not in ("val", "tensor_meta")}
    new.meta["val"] = value


def tensor_value(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node, if it makes one tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def same_number(a: Any, b: Any) -> bool:
    """Equal for every input, as far as is known; adds no guard."""
    a, b = shapes.expr_of(a), shapes.expr_of(b)
    return bool(a == b)


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Two shapes or strides are equal for every input."""
    return len(a) == len(b) and all(same_number(x, y) for x, y in zip(a, b, strict=True))


def is_contiguous(value: torch.Tensor) -> bool:
    """Elements lie one after the other; asks nothing of sizes that come from data, so what depends on them
    is not known to be.
    """
    if not shapes.is_unbacked(value):
        return value.is_contiguous()
    step: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not same_number(size, 1) and not same_number(stride, step):
            return False
        step = step * torch.sym_max(size, 1)
    return True


def keeps_offset(node: Node, value: torch.Tensor, start: Any) -> bool:
    """May what begins at element `start` of its memory stand for `value`, a result of `node`?

    Not if there are views of `node` and it begins elsewhere: their offsets were traced with its own.
    """
    return same_number(value.storage_offset(), start) or not is_viewed(node)


def is_viewed(node: Node) -> bool:
    """Whether there are views of a node's result."""
    return any(user.op == "call_function" and ops.facts(user.target).is_view for user in node.users)


def same_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same shape, dtype and device."""
    return (
        a.dtype == b.dtype
        and a.device == b.device
        and a.layout == b.layout
        and same_sizes(a.shape, b.shape)
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same shape, dtype, device and strides; the stride of a dimension of size one does not count."""
    return same_kind(a, b) and all(
        same_number(s, t) or same_number(n, 1)
        for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


UNIFORM_VIEWS: Final = (
    aten.expand.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.squeeze.dim,
    aten.slice.Tensor,
    aten.select.int,
    aten.alias.default,
)
"""Views: what holds one value everywhere still does when looked at through them."""


def uniform_value(arg: Any) -> bool | int | float | None:
    """The one value of an argument: a plain number, or a view of a `full`. None: not known to be uniform."""
    if isinstance(arg, bool | int | float):
        return arg
    while isinstance(arg, Node) and arg.op == "call_function" and arg.target in UNIFORM_VIEWS:
        arg = arg.args[0]
    if isinstance(arg, Node) and arg.op == "call_function" and arg.target is aten.full.default:
        value = arg.args[1]
        dtype = arg.meta["val"].dtype
        if isinstance(value, bool | int | float):
            return _as_dtype(value, dtype)
    return None


def _as_dtype(value: bool | int | float, dtype: torch.dtype) -> bool | int | float | None:
    """A number as it reads back from a tensor of `dtype`."""
    if dtype.is_complex:
        return None
    with fake.real_tensors():
        result: bool | int | float = torch.full((), value, dtype=dtype, device="cpu").item()
    return result


def is_used_elementwise(node: Node) -> bool:
    """Whether all that reads a result computes element by element, seen through views and items."""

    def reads_elements(user: Node) -> bool:
        if user.op != "call_function":
            return False
        facts = ops.facts(user.target)
        if facts.is_view or user.target is operator.getitem:
            return is_used_elementwise(user)
        return facts.pointwise and not facts.mutates

    return bool(node.users) and all(map(reads_elements, node.users))


def is_refused(node: Node) -> bool:
    """Whether eager mode raises for the types of a call's tensors, or for a number too large for one."""
    values = (argument.meta.get("val") for argument in node.all_input_nodes)
    dtypes = (value.dtype for value in values if isinstance(value, torch.Tensor))
    name, original = ops.op_name(node.target), fx.original_operator(node)
    if refusals.is_refused(name, dtypes):
        return True
    if not isinstance(node.target, ops.OpOverload) or not isinstance(original, ops.OpOverload):
        return False
    dtype = getattr(node.meta.get("val"), "dtype", None)
    return refusals.takes_no_number(node.target, node.args, node.kwargs, dtype, original)
