"""What is added to a product, on devices whose libraries are slower at sums of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from wide_device import WIDE, WideBackend, wide


class Later(WideBackend):
    chosen = replace(WIDE, separate_gemm_add=True, separate_convolution_bias=True)


def _text(model: nn.Module, x: torch.Tensor, **options: object) -> str:
    with torch.no_grad():
        run, planned = wide(model, backend=Later, **options)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    return planned.texts[0]


@pytest.mark.parametrize("bias", [True, False])
def test_the_bias_of_a_layer_that_a_kernel_reads_is_added_there(bias: bool) -> None:
    text = _text(nn.Sequential(nn.Linear(7, 5, bias=bias), nn.GELU()), torch.randn(3, 7))
    assert "aten_mm_out(" in text and "aten_addmm_out(" not in text


class LaterFromFourRows(WideBackend):
    chosen = replace(WIDE, separate_gemm_add=True, separate_bias_rows=4)


@pytest.mark.parametrize("rows", [3, 4])
def test_the_bias_of_few_rows_is_the_librarys(rows: int) -> None:
    x, model = torch.randn(rows, 7), nn.Sequential(nn.Linear(7, 5), nn.GELU())
    with torch.no_grad():
        run, planned = wide(model, backend=LaterFromFourRows)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    assert ("aten_addmm_out(" in planned.texts[0]) == (rows == 3)


def test_the_result_of_a_graph_is_the_librarys() -> None:
    text = _text(nn.Linear(7, 5), torch.randn(3, 7))
    assert "aten_addmm_out(" in text and "aten_mm_out(" not in text


def test_what_another_call_reads_is_the_librarys() -> None:
    text = _text(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 4), nn.ReLU()), torch.randn(3, 7))
    assert "aten_addmm_out(" in text and "aten_mm_out(" in text


@pytest.mark.parametrize("options", [{"gemm": "fastest"}, {"numerics": "eager"}])
def test_not_where_matmuls_are_tuned_or_rounded_as_eager_mode_does(options: dict[str, str]) -> None:
    text = _text(nn.Sequential(nn.Linear(7, 5), nn.GELU()), torch.randn(3, 7), **options)
    assert "aten_addmm_out(" in text


def test_weights_of_the_sum_are_the_librarys() -> None:
    def weighted(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, a, b, alpha=2).relu()

    run, planned = wide(weighted, backend=Later)
    operands = torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)
    torch.testing.assert_close(run(*operands), weighted(*operands))
    assert "aten_addmm_out(" in planned.texts[0]


@pytest.mark.quick(3)
@pytest.mark.parametrize("shape", [(4,), (1,), (3, 4), (3, 1), ()])
def test_any_term_that_broadcasts(shape: tuple[int, ...]) -> None:
    def added(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, a, b).sin()

    run, planned = wide(added, backend=Later)
    operands = torch.randn(shape), torch.randn(3, 5), torch.randn(5, 4)
    torch.testing.assert_close(run(*operands), added(*operands))
    assert "aten_addmm_out(" not in planned.texts[0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(nn.functional.linear(x, w, b))

    run, _ = wide(layer, backend=Later)
    operands = [torch.randn(s, dtype=dtype) for s in ((3, 16), (8, 16), (8,))]
    torch.testing.assert_close(run(*operands), layer(*operands), rtol=2e-2, atol=2e-2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_of_16_bits_is_the_librarys(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.GELU()).to(dtype)
    with torch.no_grad():
        x = torch.randn(3, 7, dtype=dtype)
        run, planned = wide(model, backend=Later)
        torch.testing.assert_close(run(x), model(x))
    assert "aten_addmm_out(" in planned.texts[0] and "aten_mm_out(" not in planned.texts[0]


@pytest.mark.quick(2)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [True, False])
def test_the_bias_of_a_convolution_is_added_where_it_is_read(rank: int, transposed: bool) -> None:
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{rank}d")
    x = torch.randn(2, 3, *(5,) * rank)
    text = _text(nn.Sequential(kind(3, 4, 2), nn.ReLU(), kind(4, 1, 1)), x)
    assert text.count("None") >= 2, text


def test_the_bias_of_a_convolution_that_is_stored_is_added_in_place() -> None:
    text = _text(nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 4, 1)), torch.randn(2, 3, 5, 5))
    assert text.count(", None, (1, 1)") == text.count("  # same storage") == 2, text


@pytest.mark.quick(1)
@pytest.mark.parametrize("rank", [1, 2])
def test_the_bias_of_a_convolution_that_is_read_and_saved_for_gradients_is_added_where_it_is_read(
    rank: int,
) -> None:
    torch.manual_seed(0)
    kind = getattr(nn, f"Conv{rank}d")
    model = nn.Sequential(kind(3, 4, 2), nn.SiLU(), kind(4, 2, 1))
    x = torch.randn(2, 3, *(5,) * rank)
    run, planned = wide(model, backend=Later)
    run(x).square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    torch.testing.assert_close(gradients, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)
    forward, backward = planned.texts
    assert "aten_convolution_default(primals_3, primals_1, None" in forward
    # sums of the gradients are made by the kernels that make those, too
    assert backward.count("aten_convolution_backward_default(") == 2
    assert "False)" in backward and "True, True, True)" not in backward


def test_channels_last_convolutions_keep_their_layout() -> None:
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU()).to(memory_format=torch.channels_last)
    with torch.no_grad():
        run, planned = wide(model, backend=Later)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
        assert run(x).stride() == model(x).stride()
    assert len(planned.kernels()) == 1
