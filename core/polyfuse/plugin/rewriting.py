"""How a plugin rewrites the captured graph: what the hook `polyfuse_rewrites` returns, and what such a
function is given to work with.

A rewrite looks at one call at a time. It returns the node that replaces the call, or None. The nodes
that it made and that nothing uses go away; the rest is checked. A replacement of other sizes or types is an
error; one of other strides, or one that would make two tensors of the caller share memory, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

    from polyfuse.base.settings import Settings

STAGES: Final = ("joint", "inference", "forward", "backward")
"""Graphs that are rewritten: the joint graph of training before it is divided, and what is compiled."""


@dataclass(frozen=True)
class Rewrite:
    """One rewrite of the captured graph, a functional graph of ATen operators.

    Attributes:
        name: for people, such as `"exact-reciprocal"`.
        targets: names of the operators it looks at, such as `"aten.div.Tensor"`. Calls that write to an
            argument, draw random numbers or have effects are never shown to it.
        function: ``function(ctx, node)``: the node that replaces the call, or None. It changes nothing
            but by `ctx`.
        stages: the graphs it is applied to, of `STAGES`.
    """

    name: str
    targets: tuple[str, ...]
    function: Callable[[RewriteContext, Node], Node | None]
    stages: tuple[str, ...] = ("inference", "forward", "backward")


class RewriteContext(Protocol):
    """The interface between a rewrite and the graph, at one call."""

    @property
    def settings(self) -> Settings:
        """The session's options."""

    @property
    def stage(self) -> str:
        """Which of `STAGES` the graph is."""

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Node:
        """A new call of the operator of that name before the call at hand, with its value known."""

    def tensor(self, node: Any) -> torch.Tensor | None:
        """The fake tensor that a node makes, or None where it does not make one tensor."""

    def number(self, argument: Any) -> bool | int | float | None:
        """The one value of an argument: a number, or that of a tensor which is the same everywhere. None: not
        known.
        """

    def is_called(self, node: Any, *targets: str) -> bool:
        """Whether an argument is a call of one of these operators."""

    def may_pack(self, node: Any) -> bool:
        """Whether the replacement may read what its lowering makes of a node by
        `polyfuse.plugin.LoweringContext.pack`: a parameter on the host, in a graph without gradients that
        does not write to it. Without the option `freezing`, packed copies have a limit of bytes, of which a
        yes takes what the parameter has; ask for nothing that the replacement does not pack.
        """

    def is_used_elementwise(self, node: Node) -> bool:
        """Whether all that reads a result computes element by element; views of it, and items of a result of
        several tensors, are looked through. False where nothing reads it, or the caller gets it.
        """
