"""Norms decomposed in this project's own way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.frontend.decompositions.decompose import decomposition_table


def group_norm(x: torch.Tensor, *affine: torch.Tensor | None) -> Any:
    return torch.ops.aten.native_group_norm(
        x, *affine, x.shape[0], x.shape[1], math.prod(x.shape[2:]), 3, 1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (3, 6, 4), (2, 6), (0, 6, 5)])
def test_group_norm_is_that_of_eager_mode(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(shape).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    for affine in ((weight, bias), (weight, None), (None, bias), (None, None)):
        expected = group_norm(x, *affine)
        module = make_fx(group_norm, decomposition_table=dict(decomposition_table()))(x, *affine)
        for mine, theirs in zip(module(x, *affine), expected, strict=True):
            assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_groups_that_are_rows_stay_rows(memory: torch.memory_format) -> None:
    x, affine = torch.randn(2, 6, 5, 7).contiguous(memory_format=memory), (torch.randn(6), torch.randn(6))
    graph = make_fx(group_norm, decomposition_table=dict(decomposition_table()))(x, *affine).graph
    shapes = {
        tuple(n.meta["tensor_meta"].shape) for n in graph.nodes if n.target is torch.ops.aten.mul.Tensor
    }
    assert ((2, 3, 2, 35) in shapes) == (memory is torch.contiguous_format)
