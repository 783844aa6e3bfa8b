"""What is compared with numbers that were selected of it equals one of them, wherever it is computed."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from polyfuse.frontend.saved_values import compared_with_selected


def gated(x, y):
    return x * y.sigmoid()


def save_extremes(context, operator, *args, **kwargs):
    names = ("aten.amax.default", "aten.amin.default")
    saved = str(operator) in names
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(x, y):
    contexts = partial(create_selective_checkpoint_contexts, save_extremes)
    least = checkpoint(lambda x, y: gated(x, y).amin((1, 2)), x, y, use_reentrant=False, context_fn=contexts)
    return least.sin()


def scattered(x, y):
    rows = torch.arange(x.shape[1]).remainder(3)[None, :, None].expand(x.shape)
    zeros = torch.zeros(x.shape[0], 3, x.shape[2], dtype=x.dtype)
    return zeros.scatter_reduce(1, rows, gated(x, y), "amax", include_self=False)


def tripled_means(x, y):
    means = (gated(x, y) * 3).mean(-1)
    return means.max(-1).values, means


GRADIENTS = {
    "least": lambda x, y: gated(x, y).amin((1, 2)),
    "largest in rows": lambda x, y: F.gelu(gated(x, y)).max(-1).values,
    "largest and least": lambda x, y: gated(x, y).amax(-1) - gated(x, y).amin(-1),
    "norm": lambda x, y: torch.linalg.vector_norm(F.silu(x) - y.tanh(), float("inf"), -1),
    "median": lambda x, y: gated(x, y).median(),
    "scattered": scattered,
    "means": tripled_means,
    "checkpointed": checkpointed,
}


def gradients(function, x, y):
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    results = function(x, y)
    results = results if isinstance(results, tuple) else (results,)
    sum(result.float().sum() for result in results).backward()
    return x.grad, y.grad


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="polyfuse", options={"backends": ("interpreter",), **options})


def chosen(names, quick):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", chosen(GRADIENTS, ("least", "scattered", "checkpointed")))
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_gradients_of_extremes(name, dtype):
    function = GRADIENTS[name]
    run = compiled(function)
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(2, 4, 24, 20, dtype=torch.float64).to(dtype)
        for found, expected in zip(gradients(run, x, y), gradients(function, x, y), strict=True):
            assert not found.isnan().any()
            # another of two almost equal elements may be the extreme, so sums are compared
            scale = expected.float().abs().sum()
            assert (found.float().sum() - expected.float().sum()).abs() <= 0.1 * scale


SELECTIONS = {
    "largest": lambda x: (x, x.amax(-1, keepdim=True)),
    "largest in f32": lambda x: (x.float(), x.float().amax(-1, keepdim=True)),
    "in absolute value": lambda x: (x.abs(), torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True)),
    "third": lambda x: (x, x.topk(3, -1).values[..., -1:]),
    "in windows": lambda x: (x, F.max_pool1d(x, x.shape[-1]).expand(x.shape)),
}


@pytest.mark.parametrize("name", chosen(SELECTIONS, ("largest in f32", "third")))
def test_a_value_equals_what_is_selected_of_it(name):
    def function(x, y):
        gate = y.sigmoid()  # stored in 16 bits, and held in more
        value, selected = SELECTIONS[name](x * gate)
        return value == selected, gate

    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 50, 300).bfloat16()
    equal, _ = compiled(function)(x, y)
    assert equal.any(-1).all()


def test_what_selects_for_other_ends_is_computed_as_before():
    def found(function, *inputs):
        return compared_with_selected(make_fx(function)(*inputs).graph.nodes)

    x = torch.randn(3, 4)
    assert not found(lambda x: (x.exp() - x.exp().amax(-1, keepdim=True)).exp(), x)
    assert not found(lambda x: x == x.amax(), x), "an input is the same wherever it is read"
    assert not found(lambda x: x.exp() == x.sin().amax(), x)
    assert not found(lambda x: x.exp().view(4, 3) == x.exp().amax(), x), "two calls, until they are merged"

    def merged(x):
        y = x.exp()
        return torch.where(x > 0, y, 0).view(12) == y.t().abs().amax()

    (value,) = found(merged, x)
    assert str(value.target) == "aten.exp.default"
