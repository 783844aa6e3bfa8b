"""Attention whose mask is computed from positions: called without it where it hides nothing or is causal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as attention

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.frontend.rewrites.passes import rewrite_graph

BATCH, HEADS, WIDTH, KEYS = 2, 3, 16, 7

Mask = Callable[[Tensor], Tensor]


def by_comparison(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return at[None, :] <= at[:, None]


def by_distance(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return ((at[:, None] - at[None, :]) >= 0).expand(BATCH, 1, -1, -1)


def later_ones_hidden(x: Tensor) -> Tensor:
    at = torch.arange(5, x.shape[-2] + 5)
    return ~(at > at.view(-1, 1))


def added(x: Tensor) -> Tensor:
    return torch.where(by_comparison(x), 0.0, float("-inf"))


def of_one_sequence(x: Tensor) -> Tensor:
    """As `transformers` finds out whether several sequences are packed into one."""
    position = torch.arange(x.shape[-2]).unsqueeze(0)
    apart = torch.diff(position, prepend=position[:, :1] - 1, dim=-1)
    sequence = (apart != 1).cumsum(-1)
    first = torch.arange(1)[:, None, None, None]
    query = torch.arange(x.shape[-2])[None, None, :, None]
    key = torch.arange(x.shape[-2])[None, None, None, :]
    same = sequence[first, query] == sequence[first, key]
    seen = position.expand(1, -1)[first, key] <= position.expand(1, -1)[first, query]
    return torch.ones((), dtype=torch.bool) & same & seen


def in_a_wide_window(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return by_comparison(x) & (at[None, :] > at[:, None] - 100)


CAUSAL = [by_comparison, by_distance, later_ones_hidden, added, of_one_sequence]


def at_least_the_first(x: Tensor) -> Tensor:
    """As `transformers` lets an encoder see all keys."""
    return (torch.arange(x.shape[-2])[None, None, :, None] + 0 >= 0).expand(BATCH, -1, -1, KEYS)


def nothing_added(x: Tensor) -> Tensor:
    return torch.where(at_least_the_first(x), 0.0, torch.finfo(torch.float32).min)


def zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[-2], KEYS)


NOTHING_HIDDEN = [at_least_the_first, nothing_added, zeros]


def in_a_window(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return by_comparison(x) & (at[None, :] > at[:, None] - 4)


def without_itself(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return (at[None, :] < at[:, None]) | (at == 0)


def the_other_way(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return at[None, :] >= at[:, None]


def every_other(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return 2 * at[None, :] <= at[:, None]


def shifted(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return at[None, :] - 1 <= at[:, None]


def weakly_hidden(x: Tensor) -> Tensor:
    return torch.where(by_comparison(x), 0.0, -2.0)


def raised(x: Tensor) -> Tensor:
    return torch.where(by_comparison(x), 1.0, float("-inf"))


def in_32_bits(x: Tensor) -> Tensor:
    """Some of which are negative then."""
    at = (torch.arange(x.shape[-2]) + (2**31 - 4)).to(torch.int32)
    return at[None, :] <= at[:, None]


def all_but_the_first(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-2])[:, None] >= torch.ones(1, x.shape[-2], dtype=torch.int64)


def one_added(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])[None, :]
    return torch.where(at >= 0, at * 0.5, float("-inf"))


def by_data(x: Tensor) -> Tensor:
    """Positions that the values of a tensor decide."""
    at = torch.arange(x.shape[-2]) * (x[0, 0, 0, 0] < 1e6)
    return at[None, :] <= at[:, None]


def with_a_gap(x: Tensor) -> Tensor:
    at = torch.cat([torch.arange(3), torch.arange(4, x.shape[-2] + 1)])
    return at[None, :] <= torch.arange(x.shape[-2])[:, None]


OTHER = [
    in_a_window,
    without_itself,
    the_other_way,
    every_other,
    shifted,
    weakly_hidden,
    raised,
    in_32_bits,
    all_but_the_first,
    one_added,
    by_data,
    with_a_gap,
]


def operands(queries: int, keys: int, gradients: bool = False) -> list[Tensor]:
    sizes = [(BATCH, HEADS, n, WIDTH) for n in (queries, keys, keys)]
    return [torch.randn(size, requires_grad=gradients) for size in sizes]


def left_out() -> int:
    return sum(dict(report.rewrites).get("leave-out-masks", 0) for report in last_reports())


def compiled(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    torch.compiler.reset()
    reset_reports()
    torch.manual_seed(0)
    chosen = {"backends": ["interpreter"], "graph_cache": False, **options}
    return torch.compile(function, backend="polyfuse", options=chosen)  # type: ignore[return-value]


def masked(mask: Mask) -> Callable[..., Tensor]:
    return lambda q, k, v: attention(q, k, v, attn_mask=mask(q))


@pytest.mark.quick(2)
@pytest.mark.parametrize("mask", CAUSAL)
def test_for_any_length(mask: Mask) -> None:
    function = masked(mask)
    run = compiled(function)
    for length in (9, 12, 40, 2):
        given = operands(length, length)
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 2)
        torch.testing.assert_close(run(*given), function(*given))
    assert left_out() == 1


@pytest.mark.parametrize("mask", [*CAUSAL, in_a_wide_window])
def test_for_one_length(mask: Mask) -> None:
    function, given = masked(mask), operands(9, 9)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    assert left_out() == 1
    (report,) = last_reports()
    assert not report.kernels, "no mask is computed"


@pytest.mark.parametrize("mask", NOTHING_HIDDEN)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_hides_nothing(mask: Mask, dynamic: bool) -> None:
    """Of other keys than queries, too."""
    function = masked(mask)
    run = compiled(function)
    for length in (9, 5) if dynamic else (9,):
        given = operands(length, KEYS)
        if dynamic:
            torch._dynamo.mark_dynamic(given[0], 2)
        torch.testing.assert_close(run(*given), function(*given))
    assert left_out() == 1
    (report,) = last_reports()
    assert not report.kernels, "no mask is computed"


@pytest.mark.parametrize("mask", OTHER)
def test_other_masks_are_left(mask: Mask) -> None:
    function, given = masked(mask), operands(9, 9)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    assert left_out() == 0


@pytest.mark.slow
def test_a_window_of_any_length_is_left() -> None:
    """Some lengths are longer than the window."""
    function = masked(in_a_wide_window)
    run = compiled(function)
    for length in (9, 130):
        given = operands(length, length)
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 2)
        torch.testing.assert_close(run(*given), function(*given))
    assert left_out() == 0


@pytest.mark.parametrize(("queries", "keys"), [(4, 9), (9, 4)])
def test_other_keys_than_queries_are_left(queries: int, keys: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None]
        return attention(q, k, v, attn_mask=mask)

    given = operands(queries, keys)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    assert left_out() == 0


def test_gradients() -> None:
    function = masked(of_one_sequence)
    run = compiled(function)
    given = operands(9, 9, gradients=True)
    weight = torch.randn(BATCH, HEADS, 9, WIDTH)
    found = torch.autograd.grad((run(*given) * weight).sum(), given)
    wanted = torch.autograd.grad((function(*given) * weight).sum(), given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert [report.kernels for report in last_reports()] == [0, 0], "no mask is computed, nor saved"


def test_numbers_of_eager_mode() -> None:
    function, given = masked(by_comparison), operands(9, 9)
    torch.testing.assert_close(compiled(function, numerics="eager")(*given), function(*given))
    assert left_out() == 0


def test_an_index_outside_raises_as_in_eager_mode() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[-2]
        at = torch.arange(n)[torch.arange(1, n + 1)]
        return attention(q, k, v, attn_mask=at[None, :] <= at[:, None])

    run = compiled(function)
    with pytest.raises((IndexError, RuntimeError)):
        run(*operands(9, 9))
    assert left_out() == 0


def on_a_gpu(function: Callable[..., Any], length: int) -> tuple[Node, int]:
    """The attention in a function's graph on a device that only the graph knows, rewritten, and how often."""
    with FakeTensorMode():
        given = [
            torch.empty(BATCH, HEADS, length, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(4)
        ]
        graph = make_fx(function, decomposition_table=torch._decomp.core_aten_decompositions())(*given)
        done = dict(rewrite_graph(graph, Settings(), stage="inference"))
    (call,) = (node for node in graph.graph.nodes if "attention" in str(node.target))
    return call, done.get("leave-out-masks", 0)


def bias_of(seen: Tensor, length: int, padded: int = 0, hidden: float = float("-inf")) -> Tensor:
    """What torch makes of a mask for its libraries on GPUs; memory for rows of `padded` more numbers."""
    zero, least = (torch.full((), x, dtype=torch.bfloat16, device="cuda") for x in (0.0, hidden))
    bias = torch.where(seen, zero, least)
    if padded:
        bias = torch.nn.functional.pad(bias, (0, padded)).narrow(-1, 0, length)
    return bias.expand(BATCH, HEADS, length, length)


def seen_on_a_gpu(length: int, before: int = 0) -> Tensor:
    at = torch.arange(length, device="cuda")
    return at.unsqueeze(0) + before <= at.unsqueeze(1)


EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default


@pytest.mark.parametrize("operator", [EFFICIENT, CUDNN])
@pytest.mark.parametrize("length", [16, 19])
def test_on_a_gpu(operator: Any, length: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
        bias = bias_of(seen_on_a_gpu(length), length, -length % 8)
        return operator(q, k, v, bias, True, scale=0.3)[:2]

    call, found = on_a_gpu(function, length)
    assert found == 1
    assert (call.args[3:], call.kwargs) == ((None, True, 0.0, True, *call.args[7:]), {"scale": 0.3})


@pytest.mark.parametrize("operator", [EFFICIENT, CUDNN])
def test_on_a_gpu_what_hides_nothing(operator: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
        seen = (torch.arange(19, device="cuda").unsqueeze(1) >= 0).expand(19, 19)
        return operator(q, k, v, bias_of(seen, 19, -19 % 8, -65504.0), True, scale=0.3)[:2]

    call, found = on_a_gpu(function, 19)
    assert found == 1
    assert (call.args[3:], call.kwargs) == ((None, True, 0.0, False, *call.args[7:]), {"scale": 0.3})


@pytest.mark.parametrize(("operator", "expected"), [(EFFICIENT, 0), (CUDNN, 1)])
def test_what_torch_adds_for_cudnn(operator: Any, expected: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
        return operator(q, k, v, bias_of(seen_on_a_gpu(16), 16, hidden=-65504.0), True)[:2]

    assert on_a_gpu(function, 16)[1] == expected


@pytest.mark.parametrize("operator", [EFFICIENT, CUDNN])
@pytest.mark.parametrize("left", ["dropout", "shifted", "causal", "weak"])
def test_what_is_left_on_a_gpu(operator: Any, left: str) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Any:
        hidden = -1e4 if left == "weak" else float("-inf")
        bias = bias_of(seen_on_a_gpu(16, left == "shifted"), 16, hidden=hidden)
        return operator(q, k, v, bias, True, 0.5 if left == "dropout" else 0.0, left == "causal")[:2]

    call, found = on_a_gpu(function, 16)
    assert found == 0
    assert isinstance(call.args[3], Node)


@pytest.mark.parametrize("of_the_mask", [False, True])
def test_gradients_of_the_efficient_kernel(of_the_mask: bool) -> None:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default

    def function(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Any:
        bias = bias_of(seen_on_a_gpu(16), 16)
        out = torch.empty(BATCH, HEADS, 16, WIDTH, device="cuda", dtype=torch.bfloat16)
        sums = torch.empty(BATCH, HEADS, 32, device="cuda")
        drawn = torch.empty((), device="cuda", dtype=torch.int64)
        wanted = [True, True, True, of_the_mask]
        return operator(grad, q, k, v, bias, out, sums, drawn, drawn, 0.0, wanted, scale=0.3)[:3]

    call, found = on_a_gpu(function, 16)
    assert found == (0 if of_the_mask else 1)
    assert not found or (call.args[4], call.args[9:]) == (None, (0.0, [True, True, True, False], True))


def test_gradients_of_cudnn() -> None:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

    def function(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Any:
        bias = bias_of(seen_on_a_gpu(16), 16)
        out = torch.empty(BATCH, HEADS, 16, WIDTH, device="cuda", dtype=torch.bfloat16)
        sums = torch.empty(BATCH, HEADS, 16, 1, device="cuda")
        drawn = torch.empty((), device="cuda", dtype=torch.int64)
        return operator(
            grad, q, k, v, out, sums, drawn, drawn, bias, None, None, 16, 16, 0.0, False, scale=0.3
        )

    call, found = on_a_gpu(function, 16)
    assert found == 1
    assert (call.args[8], call.args[13:]) == (None, (0.0, True))
