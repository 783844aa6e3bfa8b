"""Keys and values that a model repeats for attention are not copied."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as attention

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.frontend.rewrites.passes import rewrite_graph

BATCH, HEADS, TIMES, ROWS, WIDTH = 2, 3, 4, 10, 16


def operands(queries: int = 5, dtype: torch.dtype = torch.float32, batch: int = BATCH) -> list[Tensor]:
    torch.manual_seed(queries)
    key, value = (torch.randn(batch, HEADS, ROWS, WIDTH, dtype=dtype) for _ in range(2))
    return [torch.randn(batch, HEADS * TIMES, queries, WIDTH, dtype=dtype), key, value]


def interleaved(x: Tensor, times: int = TIMES) -> Tensor:
    return x.repeat_interleave(times, 1)


def expanded(x: Tensor, times: int = TIMES) -> Tensor:
    """As `transformers` writes it."""
    batch, heads, rows, width = x.shape
    return x[:, :, None].expand(batch, heads, times, rows, width).reshape(batch, heads * times, rows, width)


def count(function: Callable[..., Tensor], *given: Tensor, **options: object) -> int:
    """How often heads are shared; the result is eager mode's."""
    torch.compiler.reset()
    reset_reports()
    chosen = {"backends": ["interpreter"], "graph_cache": False, **options}
    compiled = torch.compile(function, backend="polyfuse", options=chosen)
    found, expected = compiled(*given), function(*given)
    tolerance = 2e-2 if given[0].dtype in (torch.bfloat16, torch.float16) else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert found.stride() == expected.stride()
    return sum(dict(report.rewrites).get("share-heads", 0) for report in last_reports())


@pytest.mark.quick(2)
@pytest.mark.parametrize("repeated", (interleaved, expanded))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("queries", (1, 5))
def test_nothing_is_copied(repeated: Callable[[Tensor], Tensor], dtype: torch.dtype, queries: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, repeated(k), repeated(v))

    assert count(function, *operands(queries, dtype)) == 1
    (report,) = last_reports()
    assert not report.kernels


@pytest.mark.quick(1)
@pytest.mark.parametrize("batch", (1, 3))
def test_causal_and_scaled(batch: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, expanded(k), expanded(v), is_causal=True, scale=0.3)

    assert count(function, *operands(ROWS, batch=batch)) == 1


def test_with_a_mask() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attention(q, expanded(k), interleaved(v), attn_mask=mask)

    for mask in (torch.randn(5, ROWS), torch.rand(BATCH, HEADS * TIMES, 5, ROWS) > 0.3):
        assert count(function, *operands(), mask) == 1


def test_after_a_cache_of_keys_and_values() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, past: Tensor) -> Tensor:
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        return attention(q, interleaved(k), interleaved(v))

    q, k, v = operands(1)
    assert count(function, q, k[:, :, :1], v[:, :, :1], torch.randn(2, BATCH, HEADS, 7, WIDTH)) == 1


def test_sizes_that_vary() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, expanded(k), expanded(v))

    torch.compiler.reset()
    compiled = torch.compile(
        function,
        backend="polyfuse",
        dynamic=True,
        options={"backends": ["interpreter"], "graph_cache": False},
    )
    for rows in (10, 7):
        q, k, v = operands()
        k, v = k[:, :, :rows], v[:, :, :rows]
        torch.testing.assert_close(compiled(q, k, v), function(q, k, v))


def other_order(x: Tensor) -> Tensor:
    """Copies of all heads, one behind the other: head 1 of the queries has head 1 of the keys."""
    return x.repeat(1, TIMES, 1, 1)


def only_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, interleaved(k), other_order(v))


def in_another_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, other_order(k), other_order(v))


def columns_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.mT.contiguous().mT  # the library wants each row's numbers side by side
    return attention(q, interleaved(k), interleaved(v))


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", (only_one, in_another_order, columns_apart))
def test_what_is_no_repetition_of_heads_is_left_alone(function: Callable[..., Tensor]) -> None:
    assert count(function, *operands()) == 0


def test_eager_numerics_and_gradients() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, interleaved(k), interleaved(v))

    given = operands()
    assert count(function, *given, numerics="eager") == 0
    assert count(function, *(x.requires_grad_() for x in given)) == 0


@pytest.mark.parametrize("dropout", (0.0, 0.5))
def test_on_a_gpu(dropout: float) -> None:
    """The graph alone, for there is none."""
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return operator(q, interleaved(k), interleaved(v), dropout, True, scale=0.1)[0]

    with FakeTensorMode():
        given = [torch.empty_like(x, device="cuda") for x in operands(dtype=torch.bfloat16)]
        graph = make_fx(function, decomposition_table=torch._decomp.core_aten_decompositions())(*given)
        before = next(n for n in graph.graph.nodes if n.target is operator).meta["val"]
        done = dict(rewrite_graph(graph, Settings(), stage="inference"))
    assert done.get("share-heads", 0) == (0 if dropout else 1)
    call = next(node for node in graph.graph.nodes if node.target is operator)
    heads = HEADS * TIMES if dropout else HEADS
    assert [tuple(x.meta["val"].shape) for x in call.args[1:3]] == [(BATCH, heads, ROWS, WIDTH)] * 2
    assert (call.args[3:], call.kwargs) == ((dropout, True), {"scale": 0.1})
    assert [tuple(x.shape) for x in call.meta["val"][:2]] == [tuple(x.shape) for x in before[:2]]


@pytest.mark.parametrize(
    "further", ((None, False, 0.0), (None, True, 0.0), (None, False, 0.5), ("mask", False))
)
def test_cudnn_on_a_gpu(further: tuple[object, ...]) -> None:
    """Without a mask, sums of exponentials and dropout."""
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention.default

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        rest = [mask if given == "mask" else given for given in further]
        return operator(q, interleaved(k), interleaved(v), *rest)[0]

    with FakeTensorMode():
        given = [torch.empty_like(x, device="cuda") for x in operands(dtype=torch.bfloat16)]
        given.append(torch.empty(BATCH, 1, 5, ROWS, device="cuda", dtype=torch.bfloat16))
        graph = make_fx(function, decomposition_table=torch._decomp.core_aten_decompositions())(*given)
        done = dict(rewrite_graph(graph, Settings(), stage="inference"))
    shared = further == (None, False, 0.0)
    assert done.get("share-heads", 0) == int(shared)
    call = next(node for node in graph.graph.nodes if node.target is operator)
    heads = HEADS if shared else HEADS * TIMES
    assert [tuple(x.meta["val"].shape) for x in call.args[1:3]] == [(BATCH, heads, ROWS, WIDTH)] * 2
