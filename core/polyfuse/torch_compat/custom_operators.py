"""Operators that others registered: what of them decides how a graph with a call of one is traced.

Their kernels run as they are and have no part in that. Tracing runs the function that computes results on
fake tensors, and the one that computes gradients, of which `torch.library.custom_op` keeps both.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket


class Untraceable(Exception):
    """Why nobody can say how an operator is traced."""


@dataclass(frozen=True)
class CustomOperator:
    """How an operator is traced.

    Attributes:
        facts: its schema, tags and effect.
        functions: Python functions that run while it is traced, by what they are for.
    """

    facts: str
    functions: tuple[tuple[str, Callable[..., Any]], ...]


# Dispatch keys under which kernels are called by the compiled program alone.
_KERNELS = re.compile(
    r"(Sparse|SparseCsr|Quantized|NestedTensor)?(CPU|CUDA|HIP|XPU|MPS|HPU|IPU|XLA|VE|MAIA|MTIA|PrivateUse[123])"
    r"|CompositeExplicitAutograd(NonFunctional)?|BackendSelect|Tracer|FuncTorchBatched|Batched"
)
_ROW = re.compile(r"(\w+)(?:\[alias\])?(?: \(inactive\))?: registered at (.*):\d+ :: ")

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"

# Where kernels are registered that call the functions of a `torch.library.custom_op`.
_WRAPPER = str(Path(torch.__file__).parent / "_library" / "custom_ops.py")


def overload_of(value: Any) -> OpOverload | None:
    """The operator that a value stands for where there is one alone: itself, a packet or what
    `torch.library.custom_op` returns."""
    from torch._library.custom_ops import CustomOpDef

    if isinstance(value, CustomOpDef):
        return value._opoverload
    if isinstance(value, OpOverloadPacket):
        names = value.overloads()
        return getattr(value, names[0]) if len(names) == 1 else None
    return value if isinstance(value, OpOverload) else None


def described(op: OpOverload) -> CustomOperator:
    """How an operator that is not torch's own is traced.

    Raises:
        Untraceable: something else takes part in it than functions that `torch.library` keeps.
    """
    from torch._decomp import global_decomposition_table
    from torch._library.custom_ops import OPDEFS
    from torch._library.simple_registry import singleton
    from torch._subclasses.fake_impls import op_implementations_dict

    name, entry = op.name(), singleton.find(op.name())
    definition: Any = OPDEFS.get(op._schema.name) if op._overloadname == "default" else None
    if op.py_kernels or any(op in table for table in global_decomposition_table.values()):
        raise Untraceable(f"{name} has a decomposition")
    rules = entry.torch_dispatch_rules._data
    if rules or op in op_implementations_dict or (definition is not None and definition._torch_dispatch_fns):
        raise Untraceable(f"{name} has rules for tensor subclasses or modes")
    tags = sorted(str(tag) for tag in op.tags)
    facts = f"{op._schema} {tags} {entry.effect._effect}"
    if definition is None and all(location.startswith(_TORCH) for _, location in _registered(name)):
        return CustomOperator(facts, ())  # a module of torch made it, so that it changes with torch alone
    if entry.fake_impl.kernel is None:
        raise Untraceable(f"{name} has no function for fake tensors")
    registered = [(key, location) for key, location in _registered(name) if not _KERNELS.fullmatch(key)]
    if sum(key == "Meta" for key, _ in registered) > 1:  # torch makes one of the function for fake tensors
        raise Untraceable(f"{name} has a kernel for meta tensors that replaces its function for fake tensors")
    for key, location in registered:
        derived = key in ("Autograd", "ADInplaceOrView") and location == _WRAPPER and definition is not None
        if key != "Meta" and not derived:
            raise Untraceable(f"{name} has a kernel for {key} that torch.library.custom_op did not make")
    functions: list[tuple[str, Any]] = []
    if definition is None:
        functions.append(("fake", inspect.unwrap(entry.fake_impl.kernel.func)))
    else:
        # torch 2.11 and 2.12 have an attribute for each device, later ones a dictionary
        if any(rule for kind, rule in vars(definition).items() if kind.startswith("_autocast")):
            raise Untraceable(f"{name} has rules for autocast")
        functions.append(("fake", definition._abstract_fn))
        functions.append(("gradient", definition._backward_fn))
        functions.append(("saved", definition._setup_context_fn))
    return CustomOperator(facts, tuple(item for item in functions if item[1] is not None))


def _registered(name: str) -> Iterator[tuple[str, str]]:
    """The dispatch keys of its kernels, replaced ones too, and the files that registered them."""
    for line in torch._C._dispatch_dump(name).splitlines():
        if ": registered at " not in line or line.startswith("debug: "):
            continue
        row = _ROW.match(line)
        if row is None:
            raise Untraceable(f"{name} has a kernel of an unknown kind")
        yield row[1], row[2]
