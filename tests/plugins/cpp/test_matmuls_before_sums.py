"""What is added up over the results of a generated matmul is not begun in its kernel, which only stores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.usefixtures("fresh_sessions")


class Squeezed(nn.Module):
    """A convolution of one image, whose channels are weighted by their means."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(16, 64, window, padding=window // 2, bias=False)
        self.norm, self.gate = nn.BatchNorm2d(64), nn.Conv2d(64, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.inner(x))
        return y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 3])
def test_means_of_channels_of_one_large_image(window: int) -> None:
    """No kernel is interpreted: `strict` raises where one would be."""
    model, x = Squeezed(window).eval(), torch.randn(1, 16, 96, 96)
    call = torch.compile(model, backend="polyfuse", options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
    decisions = last_reports()[-1].decisions
    assert any("results of a GEMM are stored" in d.reason for d in decisions)


def test_rows_of_a_pointwise_convolution_that_are_added_where_data_says() -> None:
    model, at = nn.Conv2d(16, 32, 1).eval(), torch.tensor([1, 0, 1])

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2, 32, 24, 24).index_add(0, at, model(x))

    x = torch.randn(3, 16, 24, 24)
    with torch.no_grad():
        found = torch.compile(fn, backend="polyfuse", options={"strict": True})(x)
        torch.testing.assert_close(found, fn(x), rtol=1e-4, atol=1e-4)
