"""Kernels that the model's author wrote by hand: calls that write to memory they are given.

The graph is functional: an argument that the kernel writes is cloned first, and the clone is a result. Here
the clone is made only where somebody still needs what was there before:

* a tensor that was never filled (`torch.empty`) needs no clone, just memory;
* a value that nobody reads afterwards is written where it stands;
* an input of the graph that is overwritten with the result is written directly, and the copy back falls away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from polyfuse.ir.communication import Running
from polyfuse.ir.graph import views_in
from polyfuse.ir.nodes import ExternCall, Opaque, View
from polyfuse.lowering.context import LoweringContext, tensors_in
from polyfuse.lowering.extern import argument, call
from polyfuse.lowering.fallback import OBJECT_CALL
from polyfuse.lowering.layout import storage_layout
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.symbolic import IndexLike
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.user_kernels import (
    Dynamic,
    UserKernel,
    kernel_constants,
    kernel_in_table,
    kernel_name,
    mutated_arguments,
)

FUNCTIONAL = "higher_order.triton_kernel_wrapper_functional"
MUTATING = "higher_order.triton_kernel_wrapper_mutation"


@lowers(FUNCTIONAL, library=True)
def functional(
    ctx: LoweringContext,
    node: Node,
    *,
    kernel_idx: int,
    constant_args_idx: int,
    grid: Sequence[Any],
    tma_descriptor_metadata: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    tensors_to_clone: Sequence[str],
) -> dict[str, TensorValue]:
    """The written arguments after the call, by name."""
    memory = _Memory(ctx, node)
    sources: Mapping[str, Any] = node.kwargs["kwargs"]
    fakes = node.meta["val"]
    arguments = dict(kwargs)
    written: dict[Any, TensorValue] = {}
    for name in tensors_to_clone:
        source = sources[name]
        if source not in written:
            written[source] = memory.own(source, kwargs[name], fakes[name], name)
    # one tensor may be several arguments, and the kernel sees one memory then
    for name, source in sources.items():
        if isinstance(source, Node) and source in written:
            arguments[name] = written[source]
    _emit(ctx, kernel_idx, constant_args_idx, grid, tma_descriptor_metadata, arguments, memory)
    return {name: written[sources[name]] for name in tensors_to_clone}


@lowers(MUTATING, library=True)
def mutating(
    ctx: LoweringContext,
    node: Node,
    *,
    kernel_idx: int,
    constant_args_idx: int,
    grid: Sequence[Any],
    tma_descriptor_metadata: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """A call in a graph that was not made functional: it writes to its arguments themselves."""
    memory = _Memory(ctx, node)
    sources: Mapping[str, Any] = node.kwargs["kwargs"]
    fakes = {k: v.meta["val"] if isinstance(v, Node) else v for k, v in sources.items()}
    for name in mutated_arguments(kernel_idx, constant_args_idx, fakes, tma_descriptor_metadata):
        buffer = ctx.realize_exact(kwargs[name]).buffer
        ctx.before_write(buffer)
        memory.written[buffer] = None
    _emit(ctx, kernel_idx, constant_args_idx, grid, tma_descriptor_metadata, kwargs, memory)


class _Memory:
    """The memory that one call writes: `fresh` buffers that nothing wrote before, and `written` ones."""

    def __init__(self, ctx: LoweringContext, node: Node) -> None:
        self.ctx = ctx
        self.node = node
        self.fresh: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self._needed: dict[str, set[Any]] | None = None

    def own(self, source: Any, value: TensorValue, fake: torch.Tensor, name: str) -> TensorValue:
        """A value that holds what `value` holds, in memory with its strides that may be written to."""
        ctx = self.ctx
        result = ctx.template(fake)
        if value.view is None and _is_uninitialised(source):
            view = self._empty(value)
            self.fresh[view.buffer] = None
        elif self._may_overwrite(source, value, name):
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
            view = ctx.realize_exact(copy, "overwritten by a kernel of the model")
            self.written[view.buffer] = None
        result.settle(view)
        return result

    def _empty(self, value: TensorValue) -> View:
        """New memory with the traced strides."""
        ctx, size, stride = self.ctx, value.size, value.stride
        extent: IndexLike = 0 if 0 in size else 1
        if storage_layout(size, stride, ctx.sizes) == stride:
            shape, step = size, stride
        else:
            for n, s in zip(size, stride, strict=True):
                extent = extent + (n - 1) * s if extent != 0 else extent
            shape, step = (extent,), (1,)
        return View(
            ctx.add_buffer(value.dtype, value.torch_dtype, value.device, shape, step).name, size, stride
        )

    def _may_overwrite(self, source: Any, value: TensorValue, name: str) -> bool:
        """Whether nobody will miss what `value` holds before the call."""
        view = value.view
        if view is None or not value.faithful or value.raw is not None or view.buffer in self.written:
            return False
        if any(s == 0 and n != 1 for n, s in zip(view.size, view.stride, strict=True)):
            return False
        kind = self.ctx.buffers[view.buffer].kind
        if kind not in ("temp", "input") or self._is_shared(view.buffer):
            return False
        missing = self._readers_later().get(view.buffer, set())
        if missing - {source}:
            return False
        if kind == "temp":
            return not missing
        return source.op == "placeholder" and self._replaced_by_result(source, name)

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

    def _replaced_by_result(self, source: Node, name: str) -> bool:
        """Whether all that still happens to an input is that the result `name` of this call is put there."""
        found = False
        later = self.node.next
        while later.op != "root":
            if source in later.all_input_nodes:
                if later.op == "output" or ops.op_name(later.target) != "aten.copy_.default":
                    return False
                target, result = later.args[:2]
                picked = isinstance(result, Node) and result.args[:1] == (self.node,)
                if target is not source or not picked or result.args[1] != name:
                    return False
                found = True
            later = later.next
        return found


def _is_uninitialised(source: Any) -> bool:
    return (
        isinstance(source, Node) and source.op == "call_function" and ops.facts(source.target).uninitialised
    )


def _emit(
    ctx: LoweringContext,
    kernel_idx: int,
    constant_args_idx: int,
    grid: Sequence[Any],
    descriptors: Mapping[str, Any],
    arguments: Mapping[str, Any],
    memory: _Memory,
) -> None:
    kernel = kernel_in_table(kernel_idx)
    flat: list[Any] = []
    names: list[str] = []
    constants = dict(kernel_constants(constant_args_idx))
    for name, value in arguments.items():
        lowered = argument(ctx, value)
        if isinstance(lowered, View) or not _is_plain(lowered):
            names.append(name)
            flat.append(lowered)
        else:
            constants[name] = value
    numbers: list[Any] = []

    def dynamic(value: Any) -> Any:
        """A nested value with everything that only a run knows moved to the end of the flat list."""
        if isinstance(value, (tuple, list)):
            return tuple(dynamic(item) for item in value)
        lowered = argument(ctx, value)
        if _is_plain(lowered):
            return value
        numbers.append(lowered)
        return Dynamic(len(flat) + len(numbers) - 1)

    target = UserKernel(
        kernel,
        tuple(names),
        tuple(sorted(constants.items())),
        tuple(dynamic(g) for g in grid),
        tuple((name, dynamic(meta)) for name, meta in descriptors.items()),
    )
    outputs = tuple(memory.fresh)
    ctx.emit(
        ExternCall(
            ctx.fresh("call"),
            OBJECT_CALL + _key(ctx, target).key,
            (*flat, *numbers),
            (),
            outputs,
            out="into" if outputs else "none",
            mutates=tuple(b for b in memory.written if b in {v.buffer for v in views_in(tuple(flat))}),
            origins=ctx.origins,
        )
    )


def _is_plain(value: Any) -> bool:
    """Whether a lowered argument is the same in every run."""
    return value is None or isinstance(value, (bool, int, float, str))


def _key(ctx: LoweringContext, target: UserKernel) -> Opaque:
    """The kernel under a key of the object table; equal calls share one."""
    for key, known in ctx.objects.items():
        if target.same_as(known):
            return Opaque(key=key)
    key = ctx.fresh(f"{kernel_name(target.kernel)}_")
    ctx.objects[key] = target
    return Opaque(key=key)
