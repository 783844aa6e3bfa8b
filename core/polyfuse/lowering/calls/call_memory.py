"""The memory that a call writes: the graph is functional, so what an operator overwrites is cloned first, and
the clone is a result. Here the clone is made only where somebody still needs what was there before:

* a tensor that was never filled (`torch.empty`) needs no clone, just memory;
* a value that nobody reads afterwards is written where it stands;
* an input of the graph that is overwritten in the end is written directly, and the copy back falls away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from polyfuse.ir.communication import Running
from polyfuse.ir.nodes import ExternCall, View
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.calls.overwriting import is_replaced
from polyfuse.lowering.context import LoweringContext, tensors_in
from polyfuse.lowering.shapes.layout import storage_layout
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.symbolic import storage_size
from polyfuse.torch_compat import ops


class CallMemory:
    """The memory that the call `node` writes: `fresh` buffers that nothing wrote before, and `written` ones.

    Args:
        may_be_fresh: whether the call can be given memory that holds nothing.
        reads: buffers that the call reads besides.
    """

    def __init__(
        self, ctx: LoweringContext, node: Node, *, may_be_fresh: bool = True, reads: Iterable[str] = ()
    ) -> None:
        self.ctx = ctx
        self.node = node
        self.fresh: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self._may_be_fresh = may_be_fresh
        self._reads = frozenset(reads)
        self._needed: dict[str, set[Any]] | None = None

    def own(self, source: Any, value: TensorValue, fake: torch.Tensor, key: Any) -> TensorValue:
        """A value that holds what `value` holds, in memory with its strides that may be written to.

        `source` is the traced node of `value`, and `key` what the call's results are asked for to get it
        afterwards.
        """
        ctx = self.ctx
        result = ctx.template(fake)
        if self._may_be_fresh and value.view is None and _is_uninitialised(source):
            view = self._empty(value)
            self.fresh[view.buffer] = None
        elif self._may_overwrite(value, key):
            assert value.view is not None
            view = value.view
            ctx.before_write(view.buffer)
            self.written[view.buffer] = None
        elif value.dtype is None:
            cloned = call(ctx, fake, "aten.clone.default", (value,))
            view = ctx.realize_exact(cloned)
            self.written[view.buffer] = None
        else:
            copy = TensorValue(value.dtype, value.torch_dtype, value.device, value.size, value.stride)
            copy.body = value.at(axes_of(value.size))
            copy.origins = (*value.origins, *ctx.origins)
            view = ctx.realize_exact(copy, "overwritten by a call")
            self.written[view.buffer] = None
        result.set_view(view)
        return result

    def _empty(self, value: TensorValue) -> View:
        """New memory with the traced strides."""
        ctx, size, stride = self.ctx, value.size, value.stride
        shape, step = size, stride
        if storage_layout(size, stride, ctx.sizes) != stride:
            shape, step = (storage_size(size, stride),), (1,)
        return View(
            ctx.add_buffer(value.dtype, value.torch_dtype, value.device, shape, step).name, size, stride
        )

    def _may_overwrite(self, value: TensorValue, key: Any) -> bool:
        """Whether nobody will miss what `value` holds before the call."""
        view = value.view
        if view is None or not value.faithful or value.raw is not None:
            return False
        if view.buffer in self.written or view.buffer in self._reads:
            return False
        if any(s == 0 and n != 1 for n, s in zip(view.size, view.stride, strict=True)):
            return False
        buffer = self.ctx.buffers[view.buffer]
        if buffer.kind not in ("temp", "input") or self._is_shared(view.buffer):
            return False
        missing = self._readers_later().get(view.buffer, set())
        if buffer.kind == "temp":
            return not missing
        return is_replaced(self.ctx, buffer, self.node, self._picked(key), missing)

    def _picked(self, key: Any) -> list[Node]:
        """The traced nodes that ask for one result of the call."""
        return [user for user in self.node.users if user.op == "call_function" and user.args[1] == key]

    def _readers_later(self) -> dict[str, set[Any]]:
        """For each buffer, the traced nodes stored in it that are read after this call."""
        if self._needed is None:
            self._needed = {}
            for other, result in self.ctx.env.items():
                if self.ctx.last_use.get(other, -1) > self.ctx.position:
                    for value in tensors_in(result):
                        if value.view is not None:
                            self._needed.setdefault(value.view.buffer, set()).add(other)
        return self._needed

    def _is_shared(self, buffer: str) -> bool:
        """Whether some operator's result may share the buffer's storage, or a collective still uses it."""
        return buffer in Running(self.ctx.nodes).touched() or any(
            isinstance(n, ExternCall) and n.aliases and (buffer in n.aliases or buffer in n.outputs)
            for n in self.ctx.nodes
        )


def _is_uninitialised(source: Any) -> bool:
    return (
        isinstance(source, Node) and source.op == "call_function" and ops.facts(source.target).uninitialised
    )
