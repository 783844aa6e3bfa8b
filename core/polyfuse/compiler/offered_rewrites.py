"""Rewrites that plugins offer, applied to a captured graph: one call at a time, each replacement checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.frontend.describe import alias_root
from polyfuse.frontend.freezing.packing import Packing
from polyfuse.frontend.rewrites.tools import (
    Rewriting,
    is_used_elementwise,
    keeps_offset,
    same_kind,
    same_layout,
    tensor_value,
    uniform_value,
)
from polyfuse.plugin import Extensions, Offered, Rewrite
from polyfuse.plugin.hooks.faults import as_error, is_fault
from polyfuse.torch_compat import ops


@dataclass(frozen=True)
class OfferedRewrites:
    """Runs the rewrites of a session's plugins. One that raises leaves the call as it is.

    Attributes:
        native: whether the program has to run without Python: no call becomes that of an object.
    """

    extensions: Extensions
    native: bool = False

    def __call__(self, state: Rewriting) -> Sequence[tuple[str, int]]:
        """Apply them; returns how often each one did something, by plugin and name."""
        counts: dict[str, int] = {}
        packing = Packing(state)
        for device_type in _device_types(state):
            for offer in self.extensions.rewrites(device_type):
                if state.stage in offer.item.stages:
                    name = f"{offer.plugin}.{offer.item.name}"
                    counts[name] = counts.get(name, 0) + self._apply(offer, device_type, packing)
        return tuple(counts.items())

    def lowers(self, state: Rewriting, node: Node) -> bool:
        """Whether a plugin offers a lowering that takes a call. One that raises takes none."""
        if self.native:
            return False
        for offer in self.extensions.lowerings(_device_type(node)).get(ops.op_name(node.target), ()):
            try:
                if offer.item.takes is None or offer.item.takes(state.settings, node):
                    return True
            except BaseException as error:
                if not is_fault(error):
                    raise
        return False

    def _apply(self, offer: Offered[Rewrite], device_type: str, packing: Packing) -> int:
        count, state = 0, packing.state
        for node in state.nodes():
            if ops.op_name(node.target) not in offer.item.targets or not _may_be_replaced(node):
                continue
            if _device_type(node) != device_type:
                continue
            at, reader = self._ask(offer, node, packing), node.name
            if _replace(at, node, state):
                count += 1
                for parameter in at.packed:
                    packing.add(parameter, reader, f"{offer.plugin}:{offer.item.name}")
        return count

    def _ask(self, offer: Offered[Rewrite], node: Node, packing: Packing) -> _AtCall:
        """What a plugin makes of one call; nothing, if it fails."""
        state = packing.state
        at = _AtCall(state, node, packing)
        try:
            at.replacement = offer.item.function(at, node)
            fault = _misfit(node, at.replacement)
            if fault:
                raise PolyfuseError(f"its replacement of {node.name} {fault}")
        except BaseException as error:
            if not is_fault(error):
                raise
            doing = f"rewriting by {offer.item.name}"
            if state.settings.strict:
                raise as_error(error, offer.plugin, doing) from None
            at.replacement = None
            self.extensions.plugins.note_trouble(offer.plugin, error, doing)
        return at


@dataclass
class _AtCall:
    """The `RewriteContext` of one call."""

    state: Rewriting
    node: Node
    packing: Packing
    made: list[Node] = field(default_factory=list)
    replacement: Node | None = None
    packed: list[Node] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The session's options."""
        return self.state.settings

    @property
    def stage(self) -> str:
        """Which graph it is."""
        return self.state.stage

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Node:
        """A new call before the one at hand."""
        new = self.state.call_before(self.node, ops.resolve(target), args, dict(kwargs or {}))
        self.made.append(new)
        return new

    def tensor(self, node: Any) -> torch.Tensor | None:
        """The fake tensor that a node makes."""
        return tensor_value(node)

    def number(self, argument: Any) -> bool | int | float | None:
        """The one value of an argument."""
        return uniform_value(argument)

    def is_called(self, node: Any, *targets: str) -> bool:
        """Whether an argument is a call of one of these operators."""
        return isinstance(node, Node) and node.op == "call_function" and ops.op_name(node.target) in targets

    def is_used_elementwise(self, node: Node) -> bool:
        """Whether all that reads a result computes element by element."""
        return is_used_elementwise(node)

    def may_pack(self, node: Any) -> bool:
        """Whether the replacement may read what follows from a parameter, which is computed once."""
        if not self.packing.allows(node):
            return False
        self.packed.append(node)
        return True


def _replace(at: _AtCall, node: Node, state: Rewriting) -> bool:
    """Use the replacement, if it behaves as the call did and there is fuel for it."""
    new = at.replacement
    # what is made anew shares nothing; anything else may be what the caller holds
    is_new = new is not None and alias_root(new) in at.made
    fits = new is not None and _keeps_layout(node, new) and (is_new or state.may_share(node, new))
    done = fits and state.spend()
    if done and new is not None:
        state.replace(node, new)
    for made in reversed(at.made):
        if not made.users and not (done and made is new):
            state.graph.erase_node(made)
    return done


def _may_be_replaced(node: Node) -> bool:
    """Whether a call only makes new tensors out of others, and somebody reads them."""
    facts = ops.facts(node.target)
    return bool(node.users) and facts.mergeable and not facts.is_view


def _misfit(node: Node, replacement: Any) -> str:
    """Why one node cannot stand for another, or an empty text."""
    if replacement is None:
        return ""
    if not isinstance(replacement, Node) or replacement.graph is not node.graph or replacement is node:
        return "is no other node of the graph"
    old, new = node.meta.get("val"), replacement.meta.get("val")
    if _many(node) != _many(replacement) or (_many(node) and len(old) != len(new)):
        return "has another number of results"
    olds, news = (old, new) if _many(node) else ((old,), (new,))
    for before, after in zip(olds, news, strict=True):
        if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
            if before is not after:
                return "is of another kind"
        elif not same_kind(before, after):
            return f"is {_shown(after)} in place of {_shown(before)}"
    return ""


def _keeps_layout(node: Node, replacement: Node) -> bool:
    """Whether the strides are the same too, and the storage offset where views are made: what follows was
    traced with them."""
    pairs = [(n.meta["val"] if _many(n) else (n.meta["val"],)) for n in (node, replacement)]
    return all(
        same_layout(before, after) and keeps_offset(node, before, after.storage_offset())
        for before, after in zip(*pairs, strict=True)
        if before is not after
    )


def _many(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _device_types(state: Rewriting) -> tuple[str, ...]:
    return tuple(sorted({_device_type(node) for node in state.nodes()} - {""}))


def _device_type(node: Node) -> str:
    value = node.meta.get("val")
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            return item.device.type
    return ""
