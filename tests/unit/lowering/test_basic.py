"""First things first: a block of a transformer, in and out."""

from __future__ import annotations

import torch
from lowered import check

F = torch.nn.functional


def test_pointwise_chain_is_one_node() -> None:
    record = check(lambda x, y: torch.relu(x * 2 + y) - 1, torch.randn(4, 5), torch.randn(5))
    assert record.kinds() == ["Pointwise"]


def test_layer_norm() -> None:
    check(
        lambda x, w, b: F.layer_norm(x, (16,), w, b), torch.randn(3, 4, 16), torch.randn(16), torch.randn(16)
    )


def test_softmax() -> None:
    check(lambda x: torch.softmax(x, -1), torch.randn(3, 4, 16))
    check(lambda x: torch.log_softmax(x, 1), torch.randn(3, 4, 16))


def test_linear_gelu() -> None:
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(5))


def test_attention_block() -> None:
    def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w).view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * 0.3) @ k.transpose(-1, -2)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 32) + x

    check(attention, torch.randn(2, 6, 32), torch.randn(32, 96))


def test_embedding() -> None:
    check(lambda w, i: F.embedding(i, w) * 2, torch.randn(10, 4), torch.tensor([[1, 9, 0], [3, 3, 2]]))


def test_filling_rows_of_a_transposed_tensor() -> None:
    """Its decomposition ends with a copy that has the tensor's strides."""
    record = check(lambda x, i: x.t().index_fill(0, i, 2.0), torch.randn(6, 4), torch.tensor([1, 3]))
    assert not record.report.fallbacks


def test_filling_columns() -> None:
    """Dimensions before the one that is indexed take all their elements."""
    record = check(lambda x, i: x.index_fill(1, i, 2.0), torch.randn(3, 6), torch.tensor([1, 3]))
    assert not record.report.fallbacks


def test_filling_under_vmap() -> None:
    def fill(x, i):
        return torch.func.vmap(lambda row: row.index_fill(0, i, 2.0))(x)

    x, index = torch.randn(3, 6), torch.tensor([1, 3])
    found = torch.compile(fill, backend="polyfuse", options={"backends": ("interpreter",)})(x, index)
    torch.testing.assert_close(found, fill(x, index))


def test_gradient_of_copied_columns() -> None:
    """It fills the columns that were replaced."""
    x, y, i = torch.randn(3, 6, requires_grad=True), torch.randn(3, 2), torch.tensor([4, 1])
    options = {"backends": ["interpreter"]}
    compiled = torch.compile(lambda x, y: x.index_copy(1, i, y), backend="polyfuse", options=options)
    compiled(x, y).sum().backward()
    expected = torch.ones(3, 6)
    expected[:, i] = 0
    assert x.grad is not None and torch.equal(x.grad, expected)


def test_rows_that_lie_apart_are_filled_in_a_dense_copy() -> None:
    def fill(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.index_fill(0, i, 2.0), x.t().put(i, x[0])

    x, index = torch.randn(6, 6)[::2, ::2], torch.tensor([0, 2, 1])
    results = torch.compile(fill, backend="polyfuse", options={"backends": ("interpreter",)})(x, index)
    for found, wanted in zip(results, fill(x, index), strict=True):
        torch.testing.assert_close(found, wanted, check_stride=True)


def test_mutation_reads_old_value_first() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        old = p * 3
        p.sub_(g * 0.1)
        return old + p

    record = check(step, torch.randn(6), torch.randn(6))
    assert record.graph.mutated_inputs()


def test_results_that_repeat_no_element_are_empty() -> None:
    """Strides of zero repeat elements, but not where there are none."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        once = x + 1
        return once.expand(2, 0), once[..., None].expand(2, 0, 3), once.expand(4, 2, 0), once.expand(4, 2, 5)

    check(function, torch.randn(2, 1))
