"""Models on the meta device compile and run: results have shapes, types and strides, and no memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Model(nn.Module):
    """Something of most kinds of kernel, with training in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normalisation = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.linear, self.table = nn.Linear(4, 5), nn.Embedding(7, 5)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        """Class scores, summed up along the batch."""
        features = F.max_pool2d(self.normalisation(self.convolution(x)).relu(), 2).mean((2, 3))
        scores = self.linear(features).softmax(-1) + self.table(rows)
        return F.dropout(F.layer_norm(scores, (5,)), 0.1).cumsum(0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_training_step(dynamic: bool) -> None:
    with torch.device("meta"):
        model, x, rows = Model(), torch.empty(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    torch.compiler.reset()
    result = torch.compile(model, backend="polyfuse", fullgraph=True, dynamic=dynamic)(x, rows)
    result.sum().backward()
    assert (result.device.type, result.shape) == ("meta", (2, 5))
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.scatter(0, x[:1].long(), 1.0) + 1,
        lambda x: x[:2].index_select(0, x[:, 0].long()) * 2,
        lambda x: (x.argmin(), *x.max(0), x > 0),
        lambda x: torch.var_mean(x.t() * 2, 0),
        lambda x: x + torch.rand_like(x),
        lambda x: x.add_(1).t() * 2,
    ],
)
def test_results_look_as_in_eager_mode(fn: Callable[[Tensor], Tensor | tuple[Tensor, ...]]) -> None:
    x = torch.empty(3, 4, device="meta")
    torch.compiler.reset()
    found, expected = torch.compile(fn, backend="polyfuse")(x), fn(x)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        assert (one.shape, one.dtype, one.device, one.stride()) == (
            other.shape,
            other.dtype,
            other.device,
            other.stride(),
        )
