"""Operators that take indices from data: for each a function, its arguments with good indices, and which
values make it raise in eager mode. Tests of several kinds share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CASES", "IndexCase"]


@dataclass(frozen=True)
class IndexCase:
    """A function of values and indices. `low` and `high` are indices that are just out of range, None where
    there is no such index; `good` is at the ends of the range."""

    function: Callable[..., Any]
    values: Callable[[], tuple[Tensor, ...]]
    good: Any
    low: int | None
    high: int | None
    dtype: torch.dtype = torch.int64

    def arguments(self, wrong: int | None = None, seed: int = 0) -> tuple[Tensor, ...]:
        """The values, then the indices, with the last of these replaced by a wrong one if one is given."""
        torch.manual_seed(seed)
        values = self.values()
        index = torch.tensor(self.good, dtype=self.dtype)
        if wrong is not None:
            index.view(-1)[-1] = wrong
        return (*values, index)


def _matrix() -> tuple[Tensor, ...]:
    return (torch.randn(5, 4),)


def _two() -> tuple[Tensor, ...]:
    return torch.randn(5, 4), torch.randn(3, 4)


def _cube() -> tuple[Tensor, ...]:
    return (torch.randn(3, 5, 4),)


def _set(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] = 1.0
    return y * 2


def _add_to(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] += 1.0
    return y * 2


def _fill_middle(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[:, i] = 0.5
    return y


def _gradient_of_embedding(x: Tensor, i: Tensor) -> Tensor:
    def summed(table: Tensor) -> Tensor:
        plain = F.embedding(i, table).sum()
        return plain + 3 * F.embedding(i, table, padding_idx=1, scale_grad_by_freq=True).sum()

    return torch.func.grad(summed)(x)


def _picked(x: Tensor, i: Tensor) -> Tensor:
    return x[torch.arange(i.shape[0]), i]


def _three_of(x: Tensor) -> Tensor:
    return x[:3]


_I = [0, 4, 4]
_ROWS = [[0, 1, 2, 3], [4, 3, 2, 1], [4, 4, 4, 4]]

CASES: dict[str, IndexCase] = {
    # reads
    "x[i]": IndexCase(lambda x, i: x[i] * 2, _matrix, [0, -5, 4], -6, 5),
    "x[i] of int32": IndexCase(lambda x, i: x[i] + 1, _matrix, [0, -5, 4], -6, 5, torch.int32),
    "x[i, :]": IndexCase(lambda x, i: x[i, :].exp(), _matrix, [0, -5, 4], -6, 5),
    "x[:, i]": IndexCase(lambda x, i: x.t()[:, i] + 1, _matrix, [0, -5, 4], -6, 5),
    "x[i, :, j]": IndexCase(lambda x, i: x[i % 3, :, i] + 1, _cube, [0, -4, 3], -5, 4),
    "x[j, i]": IndexCase(_picked, _matrix, [0, -4, 3], -5, 4),
    "x[i][:1]": IndexCase(lambda x, i: x[i][:1] * 2, _matrix, [0, -5, 4], -6, 5),
    "x[i][0] alone": IndexCase(lambda x, i: x[i][0].sum(), _matrix, [0, -5, 4], -6, 5),
    "sum of x[i]": IndexCase(lambda x, i: x[i].sum(), _matrix, [0, -5, 4], -6, 5),
    "softmax of x[i]": IndexCase(lambda x, i: x[i].softmax(-1), _matrix, [0, -5, 4], -6, 5),
    "x[i] masked": IndexCase(lambda x, i: torch.where(i[:, None] < 9, x[i], 0), _matrix, [0, -5, 4], -6, 5),
    "x[i] padded": IndexCase(lambda x, i: F.pad(x[i], (1, 1, 2, 0)), _matrix, [0, -5, 4], -6, 5),
    "x[i] @ y": IndexCase(lambda x, y, i: x[i] @ y.t(), _two, [0, -5, 4], -6, 5),
    "x[i + 1]": IndexCase(lambda x, i: x[i + 1], _matrix, [0, -6, 3], -7, 4),
    "embedding": IndexCase(lambda x, i: F.embedding(i, x) * 2, _matrix, _I, -1, 5),
    "embedding of int32": IndexCase(lambda x, i: F.embedding(i, x), _matrix, _I, -1, 5, torch.int32),
    "embedding in two dimensions": IndexCase(
        lambda x, i: F.embedding(i, x) + 1, _matrix, [[0, 4], [1, 2]], -1, 5
    ),
    "embedding with padding": IndexCase(lambda x, i: F.embedding(i, x, padding_idx=0), _matrix, _I, -1, 5),
    "embedding, its gradient alone": IndexCase(_gradient_of_embedding, _matrix, _ROWS, -1, 5),
    "embedding of one, its gradient alone": IndexCase(_gradient_of_embedding, _matrix, 4, -1, 5),
    "embedding_bag": IndexCase(
        lambda x, i: F.embedding_bag(i.view(1, -1), x, mode="sum"), _matrix, _I, -1, 5
    ),
    "index_select": IndexCase(lambda x, i: x.index_select(0, i) + 1, _matrix, _I, -1, 5),
    "index_select of columns": IndexCase(lambda x, i: x.index_select(1, i) + 1, _matrix, [0, 3], -1, 4),
    "gather": IndexCase(lambda x, i: x.gather(0, i) + 1, _matrix, _ROWS, -1, 5),
    "gather of columns": IndexCase(lambda x, i: x.gather(1, i) * 2, _matrix, [[0], [3], [1]], -1, 4),
    "gather, expanded": IndexCase(lambda x, i: x.gather(0, i[:, None].expand(-1, 4)), _matrix, _I, -1, 5),
    "take": IndexCase(lambda x, i: x.take(i) + 1, _matrix, [0, -20, 19], -21, 20),
    "take_along_dim": IndexCase(
        lambda x, i: x.take_along_dim(i, 1) + 1, _matrix, [[0], [1], [3], [2], [3]], -1, 4
    ),
    # writes
    "x[i] = v": IndexCase(_set, _matrix, [0, -5, 4], -6, 5),
    "x[i] += v": IndexCase(_add_to, _matrix, [0, -5, 4], -6, 5),
    "x[:, i] = v": IndexCase(_fill_middle, _matrix, [0, -4, 3], -5, 4),
    "index_put": IndexCase(lambda x, y, i: x.index_put((i,), y), _two, [0, -5, 3], -6, 5),
    "index_put, added": IndexCase(lambda x, y, i: x.index_put((i,), y, True), _two, [0, -5, 3], -6, 5),
    "put": IndexCase(lambda x, y, i: x.put(i, y[:1, :3].reshape(-1)), _two, [0, -20, 19], -21, 20),
    "index_add": IndexCase(lambda x, y, i: x.index_add(0, i, y), _two, _I, -1, 5),
    "index_add scaled": IndexCase(lambda x, y, i: x.index_add(0, i, y, alpha=2), _two, _I, -1, 5),
    "index_add of columns": IndexCase(lambda x, i: x.index_add(1, i, x[:, :3]), _matrix, [0, 3, 1], -1, 4),
    "index_add of integers": IndexCase(lambda x, y, i: x.int().index_add(0, i, y.int()), _two, _I, -1, 5),
    "index_copy": IndexCase(lambda x, y, i: x.index_copy(0, i, y), _two, [0, 3, 4], -1, 5),
    "index_fill": IndexCase(lambda x, i: x.index_fill(0, i, 2.0), _matrix, [0, -5, 4], -6, 5),
    "index_reduce": IndexCase(lambda x, y, i: x.index_reduce(0, i, y, "prod"), _two, _I, -1, 5),
    "scatter": IndexCase(
        lambda x, y, i: x.scatter(0, i, y), _two, [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 0]], -1, 5
    ),
    "scatter of a number": IndexCase(lambda x, i: x.scatter(1, i, 2.0), _matrix, [[0], [3], [1]], -1, 4),
    "scatter, added": IndexCase(lambda x, y, i: x.scatter(0, i, y, reduce="add"), _two, _ROWS, -1, 5),
    "scatter_add": IndexCase(lambda x, y, i: x.scatter_add(0, i, y), _two, _ROWS, -1, 5),
    "scatter_reduce": IndexCase(lambda x, y, i: x.scatter_reduce(0, i, y, "amax"), _two, _ROWS, -1, 5),
    "one_hot": IndexCase(lambda x, i: F.one_hot(i, 5) * x[0, 0], _matrix, _I, -1, 5),
    "max_unpool2d": IndexCase(
        lambda x, i: F.max_unpool2d(x.view(1, 1, 4, 5)[:, :, :2, :2], i, 2),
        _matrix,
        [[[[0, 3], [8, 15]]]],
        -1,
        16,
    ),
    # losses
    "cross_entropy": IndexCase(lambda x, i: F.cross_entropy(x, i), _matrix, [0, 3, -100, 2, 3], -1, 4),
    "cross_entropy, smoothed": IndexCase(
        lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1), _matrix, [0, 3, 1, 2, 3], -1, 4
    ),
    "cross_entropy, its gradient alone": IndexCase(
        lambda x, i: torch.func.grad(lambda v: F.cross_entropy(v, i))(x), _matrix, [0, 3, -100, 2, 3], -1, 4
    ),
    "nll_loss": IndexCase(lambda x, i: F.nll_loss(x, i), _matrix, [0, 3, -100, 2, 3], -1, 4),
    "nll_loss, each": IndexCase(
        lambda x, i: F.nll_loss(x, i, reduction="none"), _matrix, [0, 3, 1, 2, 3], -1, 4
    ),
    "nll_loss of a row": IndexCase(lambda x, i: F.nll_loss(x[0], i[0]), _matrix, [3], -1, 4),
    "nll_loss2d": IndexCase(
        lambda x, i: F.nll_loss(x.view(1, 3, 5, 4), i), _cube, [[[0, 1, 2, 2]] * 5], -1, 3
    ),
    "multi_margin_loss": IndexCase(lambda x, i: F.multi_margin_loss(x, i), _matrix, [0, 3, 1, 2, 3], -1, 4),
}
