"""Sums of scattered values and something else need no tensor of zeros, nor do slices of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.base.settings import Settings
from polyfuse.frontend.decompositions.decompose import decomposition_table
from polyfuse.frontend.rewrites.passes import rewrite_graph
from polyfuse.frontend.rewrites.tools import Stage


def rewritten(
    function: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    stage: Stage = "backward",
    numerics: str = "fast",
) -> tuple[int, list[str]]:
    """How often it happened, and the calls that are left; the result must be the same."""
    module = make_fx(function, decomposition_table=dict(decomposition_table()), tracing_mode="fake")(*inputs)
    before = module(*inputs)
    counts = dict(rewrite_graph(module, Settings(numerics=numerics), stage=stage))
    torch.testing.assert_close(module(*inputs), before, rtol=1e-6, atol=1e-5)
    calls = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    return counts.get("scatter-into-sums", 0) + counts.get("pad-slices", 0), calls


def embedding_gradient(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(rows, index, 20, -1, False)


A, B = torch.randn(20, 6), torch.randn(6, 4)
ROWS, INDEX = torch.randn(7, 4), torch.tensor([3, 19, 3, 0, -1, 7, 3])


def test_gradients_of_a_tied_embedding_are_one_table() -> None:
    def gradient(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return embedding_gradient(rows, index) + (a @ b + embedding_gradient(rows.sin(), index.flip(0)))

    count, calls = rewritten(gradient, A, B, ROWS, INDEX)
    assert count == 2
    assert "aten.add.Tensor" not in [c for c in calls if "add" in c]
    # the one table of zeros that may be left is the scalar that masked rows read
    assert calls.count("aten.mm.default") == 1 and calls.count("aten.index_put.default") == 2


def test_two_sums_of_scattered_values_share_a_table() -> None:
    count, _ = rewritten(
        lambda r, i: embedding_gradient(r, i) + torch.zeros(20, 4).scatter_add(0, i[:, None].clamp(0), r),
        ROWS,
        INDEX,
    )
    assert count == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a, b, r, i: a.new_ones(20, 4) + embedding_gradient(r, i), "may be broadcast or -0.0"),
        (lambda a, b, r, i: (a @ b).neg() + embedding_gradient(r, i), "a negative zero would stay"),
        (lambda a, b, r, i: torch.add(a @ b, embedding_gradient(r, i), alpha=2), "a factor"),
        (lambda a, b, r, i: (a @ b)[:1] + embedding_gradient(r, i), "broadcast"),
        (lambda a, b, r, i: (a @ b).double() + embedding_gradient(r, i), "another type"),
        (
            lambda a, b, r, i: (a @ b) + torch.zeros(20, 4).index_put((i,), r, accumulate=False),
            "replaces instead of adding",
        ),
        (lambda a, b, r, i: (a @ b) + torch.ones(20, 4).index_put((i,), r, accumulate=True), "not zeros"),
        (lambda a, b, r, i: (s := embedding_gradient(r, i)).sin() + ((a @ b) + s), "read twice"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_does_not_happen_where(function: Callable[..., torch.Tensor], why: str) -> None:
    assert rewritten(function, A, B, ROWS, INDEX)[0] == 0, why


def test_integers_may_be_added_in_any_order() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.long() + torch.zeros(20, dtype=torch.long).index_put((i,), i, accumulate=True)

    assert rewritten(function, A[:, 0] * 9, INDEX, numerics="eager")[0] == 1


def test_it_does_not_happen_while_the_backward_is_not_split_off_or_with_eager_numerics() -> None:
    def gradient(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return a @ b + embedding_gradient(rows, index)

    assert rewritten(gradient, A, B, ROWS, INDEX)[0] == 1
    assert rewritten(gradient, A, B, ROWS, INDEX, stage="joint")[0] == 0
    assert rewritten(gradient, A, B, ROWS, INDEX, numerics="eager")[0] == 0


@pytest.mark.parametrize(("dim", "start", "length"), [(0, 0, 3), (1, 2, 5), (-1, -4, 4), (1, 0, 9)])
@pytest.mark.parametrize("number", [0, 2.5])
def test_a_written_slice_of_a_complex_constant_is_a_margin(
    dim: int, start: int, length: int, number: float
) -> None:
    whole = torch.empty(6, 9, dtype=torch.complex64)
    part = whole.narrow(dim, start, length)
    for source in (torch.randn_like(part), torch.randn_like(part.t()).t()):

        def write(values: torch.Tensor) -> torch.Tensor:
            constant = torch.full((6, 9), number, dtype=torch.complex64)
            end = 9223372036854775807 if start < 0 else start + length
            copied = torch.ops.aten.copy.default(constant.narrow(dim, start, length), values)
            return torch.ops.aten.slice_scatter.default(constant, copied, dim, start, end)

        count, calls = rewritten(write, source)
        assert count == 1 and calls[-1] == "aten.constant_pad_nd.default"
        assert "aten.copy.default" not in calls and "aten.full.default" not in calls


def test_other_written_slices_stay() -> None:
    """Of what is no constant, every second element, and what a copy broadcasts or converts."""
    scatter = torch.ops.aten.slice_scatter.default
    x, part = torch.randn(6, 9, dtype=torch.complex64), torch.randn(6, 4, dtype=torch.complex64)

    def zeros() -> torch.Tensor:
        return torch.full((6, 9), 0, dtype=torch.complex64)

    def broadcast(p: torch.Tensor) -> torch.Tensor:
        return scatter(zeros(), torch.ops.aten.copy.default(zeros()[:, :4], p), 1, 0, 4)

    assert rewritten(lambda x, p: scatter(x, p, 1, 1, 5), x, part)[0] == 0
    assert rewritten(lambda p: scatter(zeros(), p, 1, 1, 9, 2), part)[0] == 0
    for other in (part[:1], part.real):
        count, calls = rewritten(broadcast, other)
        assert "aten.copy.default" in calls
    images = torch.randn(2, 3, 5, 4, dtype=torch.complex64).to(memory_format=torch.channels_last)
    count, _ = rewritten(
        lambda p: scatter(torch.full((2, 3, 5, 9), 0, dtype=torch.complex64), p, 3, 0, 4), images
    )
    assert count == 0
