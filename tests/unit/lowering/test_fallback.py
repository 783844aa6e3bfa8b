"""Whatever has no lowering runs as its eager operator: nothing fails for want of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowered import check, compare, compiled

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import reset_warned
from polyfuse.ir.nodes import ExternCall, Pointwise


def test_operator_without_lowering() -> None:
    record = check(lambda x: torch.special.airy_ai(x + 1) * 2, torch.randn(3, 3), native=False)
    assert [f.op for f in record.report.fallbacks] == ["aten.special_airy_ai.default"]


def test_effects_keep_their_order_without_tokens() -> None:
    record = check(lambda x: torch.linalg.inv(x + 1) * 2, torch.randn(3, 3) + 3 * torch.eye(3), native=False)
    assert all(i.kind == "tensor" for i in record.graph.inputs)
    calls = [n.op for n in record.graph.nodes if isinstance(n, ExternCall)]
    assert calls[0] == "aten.linalg_inv_ex.default"
    assert "aten._linalg_check_errors.default" in calls


@pytest.mark.parametrize("factored", [torch.linalg.cholesky, torch.linalg.inv])
def test_what_cannot_be_factored_raises(factored: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch._dynamo.reset()
    unused = torch.compile(lambda x: (factored(x) + 1, x * 2)[1], backend="polyfuse")
    for f in (torch.compile(lambda x: factored(x) + 1, backend="polyfuse"), unused):
        with pytest.raises(torch.linalg.LinAlgError):
            f(torch.diag(torch.tensor([1.0, 0.0, -1.0])))


def test_complex_numbers() -> None:
    check(lambda x: torch.fft.ifft(torch.fft.fft(x + 1) * 2).real + 1, torch.randn(4, 8), native=False)
    check(lambda x: torch.view_as_real(torch.polar(x.exp(), x)) * 2, torch.randn(4), native=False)


def test_forced() -> None:
    record = check(lambda x: torch.relu(x) + 1, torch.randn(5), native=False, force_fallback=("aten.relu",))
    assert [f.op for f in record.report.fallbacks] == ["aten.relu.default"]


def test_data_dependent_sizes() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        check(lambda x: torch.nonzero(x > 0) * 2, torch.randn(5, 6), native=False)
        check(lambda x: x[x > 0].sin().sum() + x.masked_select(x < 0).sum(), torch.randn(5, 6), native=False)
        check(lambda x: torch.unique(x) + 1, torch.randint(0, 5, (9,)), native=False)

        def filled(n: torch.Tensor) -> torch.Tensor:
            k = n.item()
            torch._check(k >= 2)
            torch._check(k < 100)
            return torch.ones(k) * k + torch.arange(k)

        check(filled, torch.tensor(7), native=False)


@pytest.mark.quick(1)
@pytest.mark.parametrize("none", [False, True])
def test_as_many_elements_as_a_mask_selects(none: bool) -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).masked_scatter(mask[:, None].expand_as(x), x[mask] * 2)

    mask = torch.tensor([True, False, True, True, False]) & (not none)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(fn, torch.randn(5, 6), mask, native=False)


def test_random_draws_as_eager_does() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (
            torch.rand_like(x)
            + torch.nn.functional.dropout(x, 0.5)
            + torch.randn(4) * torch.bernoulli(torch.full((4,), 0.5))
        )

    run, record = compiled(fn, numerics="eager")
    x = torch.randn(3, 4)
    torch.manual_seed(3)
    actual = run(x)
    torch.manual_seed(3)
    compare(actual, fn(x))
    assert not record.report.fallbacks
    assert all(n.ordered for n in record.graph.nodes if isinstance(n, ExternCall))


def test_control_flow() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x + 1,)) * 3

    check(fn, torch.randn(4), native=False)


def test_custom_operators_see_traced_strides_and_may_mutate() -> None:
    @torch.library.custom_op("polyfuse_test::scale_", mutates_args=("x",))
    def scale_(x: torch.Tensor, factor: float) -> None:
        x.mul_(factor)

    @torch.library.custom_op("polyfuse_test::strides", mutates_args=())
    def strides(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x.stride()) + 0

    @strides.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.dim(), dtype=torch.int64)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        z = y * 2
        scale_(y, 3.0)
        return y, z, strides((x * 2).t()[1:]), strides((x[0] * 2).expand(3, 4))

    check(fn, torch.randn(3, 4), native=False)


def test_several_results_and_lists() -> None:
    check(
        lambda x: [*torch.sort(x + 1), *torch.topk(x * 2, 2), *torch.linalg.qr(x), *torch.aminmax(x)],
        torch.randn(4, 3),
        native=False,
    )
    check(lambda x: [t + 1 for t in torch._foreach_add([x, x * 2], 1.0)], torch.randn(3), native=False)


def test_lists_within_lists_of_results() -> None:
    @torch.library.custom_op("polyfuse_test::shares", mutates_args=())
    def shares(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return x * 2, [x / (k + 1) for k in range(count)]

    @shares.register_fake
    def _(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return torch.empty_like(x), [torch.empty_like(x) for _ in range(count)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        double, parts = shares(x + 1, 3)
        return double.relu() - parts[0] * parts[2] + parts[1]

    record = check(fn, torch.randn(4, 3), native=False)
    assert [f.op for f in record.report.fallbacks] == ["polyfuse_test.shares.default"]


def test_strict_refuses() -> None:
    run, _ = compiled(lambda x: torch.round(x, decimals=1) ** x.long(), strict=True)
    with pytest.raises(Exception) as caught:
        run(torch.randint(0, 3, (4,)))
    assert "strict" in str(caught.value) or isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: torch.special.airy_ai(x + 1), "aten.special_airy_ai"),
        (lambda x: torch.fft.fft(x + 1).real * 2, "aten._fft_r2c"),
    ],
)
def test_strict_refuses_operators_without_a_lowering(
    function: Callable[[torch.Tensor], torch.Tensor], operator: str
) -> None:
    run, _ = compiled(function, strict=True)
    with pytest.raises(Exception, match=rf"{operator}\.default \(test_fallback.*would fall back to eager"):
        run(torch.randn(8))
    accepted, _ = compiled(function, strict=True, force_fallback=(operator,))
    x = torch.randn(8)
    torch.testing.assert_close(accepted(x), function(x))


def test_strict_lets_libraries_views_and_random_numbers_be() -> None:
    run, record = compiled(
        lambda x: torch.mm(x, x).sort().values.relu() + torch.rand_like(x).view(torch.int32).float(),
        strict=True,
    )
    run(torch.randn(4, 4))
    assert not record.report.fallbacks


@pytest.mark.parametrize("name", ["aten.gelu", "aten.gelu.default"])
def test_forced_before_it_is_decomposed(name: str) -> None:
    options: dict[str, Any] = {"force_fallback": (name,), "strict": True}
    record = check(lambda x: F.gelu(x) + 1, torch.randn(5), native=False, **options)
    assert [f.op for f in record.report.fallbacks] == ["aten.gelu.default"]


@pytest.mark.parametrize(
    ("name", "words"), [("aten.gellu", "did you mean aten.gelu"), ("aten.linear", "decomposes before")]
)
def test_names_that_force_nothing(name: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    reset_warned()
    compiled(lambda x: F.linear(x, x).relu(), force_fallback=(name,))[0](torch.randn(3, 3))
    assert [words in r.getMessage() for r in caplog.records if "force_fallback" in r.getMessage()] == [True]


def test_complex_numbers_that_are_not_finite() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    numbers = [complex("nan+nanj"), complex(float("-inf"), 0.5), complex(-0.0, float("inf"))]
    check(lambda x: [torch.where(x.real > 0, x, torch.full_like(x, n)) for n in numbers], x, native=False)
    check(lambda x: torch.logaddexp(x, x * 2), x, native=False)


def test_integer_powers_by_eager() -> None:
    check(lambda x: x**x, torch.tensor([1, 2, 3]), native=False)


@pytest.mark.quick(5)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.flip(0, 1),
        lambda x: torch.fft.fftshift(x),
        lambda x: F.pad(x[None], (1, 2), mode="reflect"),
        lambda x: F.pad(x[None], (1, 2), mode="replicate"),
        lambda x: F.pad(x[None], (2, 1), mode="circular"),
        lambda x: x.roll(2, 1),
        lambda x: x.repeat(2, 3),
        lambda x: x.rot90(),
        lambda x: x.tril() + x.triu(1),
    ],
)
def test_complex_numbers_are_moved_by_eager_operators(
    move: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    """Only the operator runs in eager mode: what is real beside it is compiled."""
    x = torch.randn(4, 6, dtype=dtype)
    record = check(lambda x, y: (move(x), y.exp() + 1), x, torch.randn(5), native=False)
    assert any(isinstance(n, Pointwise) for n in record.graph.nodes)
