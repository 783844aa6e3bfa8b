"""The cheapest way to call an operator: less than the operator object itself costs, with the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polyfuse.torch_compat.ops import OpOverload, OpOverloadPacket, resolve

# Functions of torch's C extension that take exactly what the operator's schema says, and choose the same
# overload by the types of a full argument list. They skip the generic boxing of arguments, about half of a
# call's cost. No operator with a list that may hold None: these functions do not take one.
_DIRECT = (
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "outer"),
    *("convolution", "conv1d", "conv2d", "conv3d", "embedding", "_adaptive_avg_pool2d", "cat", "clone"),
    *("sort", "topk", "cumsum", "cumprod", "nonzero", "gather", "index_select", "scatter_add"),
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "native_dropout"),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def fast_call(name: str, out: bool = False) -> Callable[..., Any]:
    """A callable that does what the operator `name` does.

    Args:
        name: operator name such as `aten.mm.default`.
        out: whether it will be called with `out=`; any overload of the operator may then be named.

    Raises:
        LookupError: torch has no such operator.
    """
    target = out_variant(name) if out else resolve(name)
    if isinstance(target, OpOverload):
        space, packet, overload = str(target).split(".")
        if space == "aten" and packet in _DIRECT and overload in ("default", "out"):
            direct = getattr(torch._C._VariableFunctions, packet, None)
            if direct is not None:
                return direct
        # exactly the class whose call does nothing but forward to this
        if type(target) is OpOverload:
            return target._op
    return target


def out_variant(name: str) -> Any:
    """The overload that writes the result of `name` to `out=`; LookupError if there is none."""
    target = resolve(name)
    if isinstance(target, OpOverloadPacket):
        packet, arguments = target, None
    else:
        if not isinstance(target, OpOverload) or _is_out(target):
            return target
        packet = target.overloadpacket
        arguments = [(a.name, str(a.type)) for a in target._schema.arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if _is_out(candidate):
            own = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
            if arguments is None or own == arguments:
                return candidate
    raise LookupError(f"{name} has no variant with out=; call it for its result instead.")


def _is_out(overload: OpOverload) -> bool:
    return any(a.is_out and a.name == "out" for a in overload._schema.arguments)
