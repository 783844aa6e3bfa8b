"""Layers of one row on the device: norms in the products that read them, projections in one launch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from triton_rows import Layer

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("width", [320, 2048, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_layer_of_one_row(width: int, dtype: torch.dtype, norm: str) -> None:
    torch.manual_seed(0)
    reset_reports()
    model = Layer(width, dtype, getattr(nn, norm)).cuda()
    run = torch.compile(model, backend="polyfuse", dynamic=False, options={"device_graphs": True})
    with torch.no_grad():
        for _ in range(4):  # as it is, recorded, replayed
            x = torch.randn(1, width, device="cuda", dtype=dtype)
            found, eager = run(x), model(x)
            truth = model.double()(x.double())
            model.to(dtype)
            for got, plain, wanted in zip(found, eager, truth, strict=True):
                off, usual = (float((t.double() - wanted).norm() / wanted.norm()) for t in (got, plain))
                assert off <= 1.5 * usual + 1e-6
    (report,) = last_reports()
    if dtype is not torch.float32 and torch.cuda.get_device_capability() >= (9, 0):
        assert [d.kind for d in report.decisions].count("repeat") == 2 and report.kernels == 5
