"""Attention whose operands the library's fused kernels do not take as they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from polyfuse.runtime.devices.host import HostDevice
from polyfuse.torch_compat.tracing import decomp
from wide_device import Planned, wide

FUSED = "_scaled_dot_product_flash_attention_for_cpu"


def _planned(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Planned:
    with torch.no_grad():
        run, planned = wide(function)
        expected = function(*operands)
        found = run(*operands)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.stride() == expected.stride()
    return planned


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "fused_attention", True)


def _transposed_query(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x.transpose(-1, -2), y, y)


def _operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 8, 6), torch.randn(2, 3, 5, 8)


@pytest.mark.usefixtures("by_rows")
def test_what_is_not_contiguous_along_its_last_axis_is_copied() -> None:
    text = _planned(_transposed_query, *_operands()).texts[0]
    assert FUSED in text and "bmm" not in text


def test_not_on_a_device_whose_library_takes_any_layout() -> None:
    assert FUSED not in _planned(_transposed_query, *_operands()).texts[0]


def _relative(table: torch.Tensor) -> torch.Tensor:
    """Of each pair of positions and head, the same for all of the batch."""
    return table.permute(2, 0, 1).unsqueeze(0).expand(2, -1, -1, -1)


def _of_queries(table: torch.Tensor) -> torch.Tensor:
    """The same for all keys."""
    return table[None, :, :1, 0, None].expand(2, 3, -1, -1, 5)[..., 0, :]


@pytest.mark.usefixtures("by_rows")
@pytest.mark.parametrize("mask", [_relative, _of_queries])
def test_a_mask_that_lies_otherwise_and_repeats(mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def masked(x: torch.Tensor, y: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x, y, y, mask(table))

    x, y, table = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 5, 8), torch.randn(6, 5, 3)
    assert mask(table).stride(-1) != 1
    strides = []
    taken = decomp.composed

    def composed(op: torch._ops.OpOverload, *args: object, **named: object) -> object:
        strides.append([a.stride(-1) for a in args if isinstance(a, torch.Tensor)])
        return taken(op, *args, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decomp, "composed", composed)
        assert FUSED in _planned(masked, x, y, table).texts[0]
    assert strides and all(found == [1, 1, 1, 1] for found in strides)


@pytest.mark.usefixtures("by_rows")
@pytest.mark.parametrize("sizes", [((2, 3), (2, 1), (2, 1)), ((1, 3), (2, 1), (2, 3))])
def test_heads_and_images_that_broadcast(sizes: tuple[tuple[int, int], ...]) -> None:
    operands = [torch.randn(*outer, 6, 8) for outer in sizes]
    assert FUSED in _planned(scaled_dot_product_attention, *operands).texts[0]
    compiled = torch.compile(
        scaled_dot_product_attention, backend="polyfuse", options={"backends": ["interpreter"]}
    )
    found, expected = compiled(*operands), scaled_dot_product_attention(*operands)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.stride() == expected.stride()


@pytest.mark.usefixtures("by_rows")
def test_gradients() -> None:
    def trained(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [t.requires_grad_() for t in _operands()]
        function(*leaves).square().sum().backward()
        return [t.grad for t in leaves if t.grad is not None]

    compiled = torch.compile(_transposed_query, backend="polyfuse", options={"backends": ["interpreter"]})
    torch.testing.assert_close(trained(compiled), trained(_transposed_query), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("by_rows")
def test_dropout_draws_the_numbers_of_eager_mode() -> None:
    def dropped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x.transpose(-1, -2), y, y, dropout_p=0.5)

    operands = _operands()
    compiled = torch.compile(dropped, backend="polyfuse", options={"backends": ["interpreter"]})
    torch.manual_seed(3)
    expected = dropped(*operands)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(*operands), expected, rtol=1e-4, atol=1e-5)
