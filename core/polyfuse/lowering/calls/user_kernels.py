"""Kernels that the model's author wrote by hand: calls that write to memory they are given.

Which memory that is says `call_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from polyfuse.ir.graph import views_in
from polyfuse.ir.nodes import OBJECT_CALL, ExternCall, Opaque, View
from polyfuse.lowering.calls.call_memory import CallMemory
from polyfuse.lowering.calls.extern import argument
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue
from polyfuse.symbolic import Index, example_value
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
    memory = CallMemory(ctx, node)
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
    memory = CallMemory(ctx, node)
    sources: Mapping[str, Any] = node.kwargs["kwargs"]
    fakes = {k: v.meta["val"] if isinstance(v, Node) else v for k, v in sources.items()}
    for name in mutated_arguments(kernel_idx, constant_args_idx, fakes, tma_descriptor_metadata):
        buffer = ctx.realize_exact(kwargs[name]).buffer
        ctx.before_write(buffer)
        memory.written[buffer] = None
    _emit(ctx, kernel_idx, constant_args_idx, grid, tma_descriptor_metadata, kwargs, memory)


def _emit(
    ctx: LoweringContext,
    kernel_idx: int,
    constant_args_idx: int,
    grid: Sequence[Any],
    descriptors: Mapping[str, Any],
    arguments: Mapping[str, Any],
    memory: CallMemory,
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
    target.measure([_example(ctx, value) for value in (*flat, *numbers)])
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


def _example(ctx: LoweringContext, value: Any) -> Any:
    """Something like what a run passes: zeros of the example sizes, numbers as they are."""
    hints = ctx.sizes.hints
    if isinstance(value, View):
        buffer = ctx.buffers[value.buffer]
        size, stride = ([example_value(n, hints) for n in part] for part in (value.size, value.stride))
        dtype = getattr(torch, buffer.torch_dtype)
        return torch.empty_strided(size, stride, dtype=dtype, device=buffer.device or "cpu").zero_()
    return example_value(value, hints) if isinstance(value, Index) else value


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
