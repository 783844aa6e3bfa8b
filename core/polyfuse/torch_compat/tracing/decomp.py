"""torch's decomposition tables, looked up entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from polyfuse.torch_compat.tracing.global_state import plain_operators


def registered() -> Mapping[Any, Callable[..., Any]]:
    """Every decomposition torch registers for use after autograd. First use imports them all."""
    from torch._decomp import decomposition_table

    return decomposition_table


@cache
def composite() -> Mapping[Any, Callable[..., Any]]:
    """How torch decomposes the operators that are made of others, which an exported program has whole."""
    from torch._C import DispatchKey
    from torch.export import default_decompositions

    key = DispatchKey.CompositeImplicitAutograd
    return {
        op: function
        for op, function in default_decompositions().items()
        if isinstance(op, OpOverload) and op.has_kernel_for_dispatch_key(key)
    }


def is_composite(op: Any) -> bool:
    """Whether an operator, in all forms that write to no argument, is made of others for autograd."""
    from torch._C import DispatchKey

    overloads = [op]
    if isinstance(op, OpOverloadPacket):
        every = [getattr(op, name) for name in op.overloads()]
        overloads = [each for each in every if not each._schema.is_mutable] or every
    key = DispatchKey.CompositeImplicitAutograd
    return all(isinstance(each, OpOverload) and each.has_kernel_for_dispatch_key(key) for each in overloads)


def expand_packets(names: Iterable[str]) -> tuple[OpOverload, ...]:
    """Overloads of ATen names: `add` means every overload, `add.Tensor` that one; unknown names are skipped,
    since operators come and go between releases."""
    found: list[OpOverload] = []
    for name in names:
        packet_name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        if not isinstance(packet, OpOverloadPacket):
            continue
        overloads = [overload] if overload else packet.overloads()
        for each in overloads:
            op = getattr(packet, each, None)
            if isinstance(op, OpOverload):
                found.append(op)
    return tuple(found)


def selected(names: Iterable[str]) -> dict[OpOverload, Callable[..., Any]]:
    """torch's decompositions of the named ATen operators; those without one are left out."""
    table = registered()
    return {op: table[op] for op in expand_packets(names) if op in table}


def composed(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that is made of others as torch decomposes it, whatever replaces that."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def below_autograd(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Call an operator past whatever is registered for it above the recording of gradients."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args, **kwargs)


@cache
def margins_keep_layout() -> bool:
    """Whether torch says of a tensor with margins that its channels are last where those of the tensor are,
    as the operator has it on the CPU. It does from 2.13 on.
    """
    with plain_operators():
        x = torch.empty(1, 2, 3, 3, device="meta", memory_format=torch.channels_last)
        margined = torch.ops.aten.reflection_pad2d.default(x, [1, 1, 1, 1])
    return margined.is_contiguous(memory_format=torch.channels_last)


@cache
def provide_resampling_shapes() -> None:
    """Give the gradients of resampling a Python shape function where torch has none: what it has in C++ does
    not take symbolic sizes."""
    from torch._C import DispatchKey

    for op in expand_packets(_RESAMPLING_GRADIENTS):
        if DispatchKey.Meta not in op.py_kernels and op._overloadname == "default":
            op.py_impl(DispatchKey.Meta)(_dense if "bicubic" in op.name() else _like_input)


_RESAMPLING_GRADIENTS = tuple(
    f"{stem}_backward.default"
    for stem in (
        *(f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_trilinear3d",
        "upsample_bicubic2d",
    )
)


def _dense(grad: Any, output_size: Any, input_size: Any, *rest: Any, **named: Any) -> Any:
    """A gradient of the size of the input, whose channels are never last."""
    return grad.new_empty(input_size)


def _like_input(grad: Any, output_size: Any, input_size: Any, *rest: Any, **named: Any) -> Any:
    """A gradient of the size of the input, channels last if the gradient that came in is."""
    result = grad.new_empty(input_size)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(input_size))
    if last is not None and grad.is_contiguous(memory_format=last) and not grad.is_contiguous():
        return result.to(memory_format=last)
    return result


@contextmanager
def undecomposed(
    names: Iterable[str], instead: Callable[[OpOverload], Callable[..., Any] | None] = lambda op: None
) -> Iterator[None]:
    """While tracing, leave the named ATen operators whole that torch decomposes in Python before autograd
    sees them, or decompose them, and those that torch decomposes in C++, as `instead` says.

    What another thread has set aside already stays its business: it puts back what it took.
    """
    from torch._C import DispatchKey

    provide_resampling_shapes()
    taken: list[tuple[OpOverload, Any, Callable[..., Any] | None]] = []
    composite = DispatchKey.CompositeImplicitAutograd
    for op in expand_packets(names):
        own = instead(op)
        for key in (composite, DispatchKey.Autograd):
            kernel = op.py_kernels.pop(key, None)
            native = key == composite and own is not None and op.has_kernel_for_dispatch_key(key)
            if kernel is not None or native:
                taken.append((op, key, kernel))
                if own is not None:
                    op.py_kernels[key] = own
                op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in taken:
            op.py_kernels.pop(key, None)
            if kernel is not None:
                op.py_kernels[key] = kernel
            op._dispatch_cache.clear()
