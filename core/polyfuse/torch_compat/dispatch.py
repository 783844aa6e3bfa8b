"""Kernels that replace torch's own, for one operator and type of device, until they are taken back."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.library import Library, get_kernel

Kernel = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called with torch's own kernel and the arguments of a call."""


def refusal(op: Any, device_type: str) -> str:
    """Why the kernel of an operator cannot be replaced on a type of device; empty if it can."""
    if not isinstance(op, OpOverload):
        return "it is no single overload of an operator"
    schema = op._schema
    if schema.is_mutable or any(result.alias_info is not None for result in schema.returns):
        return "it writes to its arguments, or returns views of them"
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "it draws random numbers"
    if not any("Tensor" in str(argument.type) for argument in schema.arguments):
        return "it has no tensors among its arguments"
    if op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        return "it is made of other operators, which have kernels of their own: name these"
    if not op.has_kernel_for_dispatch_key(_key(device_type)) and not op.has_kernel_for_dispatch_key(
        DispatchKey.CompositeExplicitAutograd
    ):
        return f"it has no kernel for devices of type {device_type}"
    return ""


_REPEATED: dict[str, Any] = (
    {"allow_override": True} if "allow_override" in inspect.signature(Library.impl).parameters else {}
)
"""A kernel may be replaced that was replaced already; some releases of torch want a flag for that."""


class Override:
    """`kernel` instead of torch's own, which it gets as its first argument, until `close`."""

    def __init__(self, op: OpOverload, device_type: str, kernel: Kernel) -> None:
        key = _key(device_type)
        own = get_kernel(op, key)

        def replaced(keys: Any, *args: Any, **kwargs: Any) -> Any:
            return kernel(lambda *a, **k: own.call_boxed(keys, *a, **k), args, kwargs)

        self._library: Any = Library(op.namespace, "IMPL")
        with warnings.catch_warnings():
            # replacing a kernel is the point
            warnings.simplefilter("ignore")
            name = str(op).removeprefix(f"{op.namespace}.").removesuffix(".default")
            self._library.impl(name, replaced, key.name, with_keyset=True, **_REPEATED)

    def close(self) -> None:
        """Put torch's own kernel back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None


def _key(device_type: str) -> DispatchKey:
    found: DispatchKey = torch._C._dispatch_key_parse(torch._C._dispatch_key_for_device(device_type))
    return found
