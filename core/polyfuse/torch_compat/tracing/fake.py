"""Fake tensors: shapes and types of the values of a graph, without data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode as _detect
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily


def is_fake(value: object) -> bool:
    """True for a fake tensor."""
    return type(value) is FakeTensor or isinstance(value, FakeTensor)


def detect_fake_mode(values: Sequence[Any] = ()) -> FakeTensorMode | None:
    """The fake mode of the running trace, or the one `values` belong to."""
    return _detect(list(values))


def share_storage(one: object, other: object) -> bool:
    """Whether two fake tensors of one type and plain layout are views of one, read without a conversion."""
    if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
        return False
    if one.layout is not torch.strided or other.layout is not torch.strided or one.dtype != other.dtype:
        return False
    if one.is_conj() != other.is_conj() or one.is_neg() != other.is_neg():
        return False
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def shape_env_of(mode: FakeTensorMode | None) -> Any:
    """The `ShapeEnv` behind a fake mode; None when every shape is static."""
    return mode.shape_env if mode is not None else None


def fakify(mode: FakeTensorMode, value: Any) -> Any:
    """`value` as a static fake tensor of `mode`; what is not a tensor passes through."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return mode.from_tensor(value, static_shapes=True)


def real_tensors() -> AbstractContextManager[Any]:
    """Leave fake mode for a while, to run ops on real tensors."""
    return unset_fake_temporarily()


def fake_evaluate(
    mode: FakeTensorMode | None, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an op on fake values, so a node made by a rewrite gets its `meta["val"]`."""
    with torch.no_grad(), mode if mode is not None else nullcontext():
        return target(*args, **kwargs)


def repropagate(module: torch.fx.GraphModule, mode: FakeTensorMode | None) -> None:
    """Compute every node's `meta["val"]` anew from those of the placeholders."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    values = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*values)
