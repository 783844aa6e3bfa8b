"""Operators of the example's own, such as a library of layers may bring."""

from __future__ import annotations

import torch


@torch.library.custom_op("polyfuse_numpy::swiglu", mutates_args=())
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, of tensors of one shape."""
    return torch.nn.functional.silu(gate) * up


@swiglu.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(gate)


@torch.library.custom_op("polyfuse_numpy::distances", mutates_args=())
def distances(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Squared distances between the rows of two matrices."""
    return (left[:, None] - right).square().sum(-1)


@distances.register_fake
def _(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.new_empty(left.shape[0], right.shape[0])
