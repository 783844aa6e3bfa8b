"""Decompositions of fused optimiser steps: the same work, a parameter at a time, so that it fuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_WIDE = (torch.float32, torch.float64)


def _can_step(tensors: Sequence[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> bool:
    """Loss scaling and half-precision parameters stay with the library's kernel."""
    return grad_scale is None and found_inf is None and all(t.dtype in _WIDE for t in tensors)


def fused_adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    max_squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Any:
    """Adam, with weight decay `decoupled` or as L2 regularisation, a parameter at a time."""
    if not _can_step([*params, *grads], grad_scale, found_inf):
        return NotImplemented
    new: tuple[list[Tensor], ...] = ([], [], [], [], [])
    for i, (param, grad, average, square, step) in enumerate(
        zip(params, grads, averages, squares, steps, strict=True)
    ):
        new[1].append(grad)
        gradient = -grad if maximize else grad
        if weight_decay != 0:
            if decoupled:
                param = param - lr * weight_decay * param
            else:
                gradient = gradient + weight_decay * param
        average = average + (1 - beta1) * (gradient - average)
        square = beta2 * square + (1 - beta2) * gradient * gradient
        count = step.to(torch.float64)
        correction1 = 1 - torch.pow(beta1, count)
        correction2 = torch.sqrt(1 - torch.pow(beta2, count)).to(param.dtype)
        peak = square
        if amsgrad:
            peak = torch.maximum(max_squares[i], square)
            new[4].append(peak)
        denominator = torch.sqrt(peak) / correction2 + eps
        param = param - (lr / correction1).to(param.dtype) * average / denominator
        for into, value in zip((new[0], new[2], new[3]), (param, average, square), strict=True):
            into.append(value)
    return new


def fused_sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Any:
    """Stochastic gradient descent, a parameter at a time."""
    if not _can_step([*params, *grads], grad_scale, found_inf):
        return NotImplemented
    new_params: list[Tensor] = []
    new_buffers: list[Tensor] = []
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        change = -grad if maximize else grad
        if weight_decay != 0:
            change = change + weight_decay * param
        if momentum != 0:
            buffer = change.clone() if is_first_step else momentum * buffers[i] + (1 - dampening) * change
            new_buffers.append(buffer)
            change = change + momentum * buffer if nesterov else buffer
        new_params.append(param - lr * change)
    return new_params, list(grads), new_buffers
