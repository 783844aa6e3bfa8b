"""Decompositions of losses whose own in torch give other numbers than operators do, or need more memory."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfuse.torch_compat.tracing import fx

_MEAN, _SUM = 1, 2
"""torch's numbers for the kinds of `reduction`."""


def multilabel_margin_loss_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Labels count up to the first that is negative; each against every class that is no label of the row."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    count = rows.shape[1]
    position = torch.arange(count, device=target.device)
    end = torch.amin(torch.where(labels < 0, position, count), dim=-1, keepdim=True)
    given = position < end
    chosen = torch.where(given, labels, 0)
    is_label = torch.any((position == chosen.unsqueeze(-1)) & given.unsqueeze(-1), dim=1)
    reached = torch.gather(rows, -1, chosen)
    margin = (1.0 - reached.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0)
    counted = given.unsqueeze(-1) & ~is_label.unsqueeze(1)
    loss = torch.where(counted, margin, 0).sum(dim=(1, 2)) / count
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction == _SUM:
        loss = loss.sum()
    elif x.dim() < 2:
        loss = loss.squeeze(0)
    return loss, is_label.to(x.dtype).reshape(target.shape)


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """A choice at every element, of which nothing has to be stored, where torch writes into zeros.

    `x` may be a row, rows, or planes.
    """
    dim = min(x.dim(), 2) - 1
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    label = (target[0] if x.dim() == 1 and target.dim() == 1 else target).unsqueeze(dim)
    if reduction == _MEAN:
        grad = grad / total_weight
    elif reduction != _SUM and x.dim() > 1:
        grad = grad.unsqueeze(dim)
    if weight is not None:
        grad = grad * weight.reshape(shape)
    number, counted = torch.arange(x.shape[dim], device=x.device), label != ignore_index
    if not fx.traces_backward():  # its forward, which would refuse a wrong label, may be left out
        label = torch.gather(number, 0, torch.where(counted, label, 0).flatten()).reshape(label.shape)
    return torch.where((number.reshape(shape) == label) & counted, -grad, 0)


def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """As eager mode compares: a distance of NaN is within `beta`, so that its gradient is NaN, where torch's
    decomposition takes the sign of it, zero."""
    if reduction == _MEAN and x.numel() != 0:
        grad = grad * (1.0 / x.numel())
    away = x - target
    return torch.where(away <= -beta, -grad, torch.where(away >= beta, grad, grad * away / beta))
