"""Attention that a model spells out becomes the library's where that is as it should be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.runtime.devices.host import HostDevice
from polyfuse.torch_compat.devices import host_switches

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 10, 16


@pytest.fixture(autouse=True)
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {torch.bfloat16: 1, torch.float16: 1}
    monkeypatch.setattr(HostDevice, "spelled_attention", types)


def _count(function: Callable[..., object], *operands: Tensor, **options: object) -> int:
    """How often attention became the library's; results and layouts are eager mode's."""
    torch.compiler.reset()
    reset_reports()
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["interpreter"], **options})
    with torch.no_grad():
        found, expected = compiled(*operands), function(*operands)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
    (report,) = last_reports()
    return dict(report.rewrites).get("fuse-attention", 0)


def _heads(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(BATCH, HEADS, TOKENS, WIDTH, dtype=dtype) for _ in range(3)]


def _plain(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return [torch.softmax(q @ k.mT / math.sqrt(WIDTH), -1) @ v]


def _in_f32(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return [torch.softmax(q @ k.mT * 0.25, -1, dtype=torch.float32).to(q.dtype) @ v]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_spellings(dtype: torch.dtype) -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        return _plain(q, k, v) + _in_f32(q, v, k)

    assert _count(both, *_heads(dtype=dtype)) == 2


def test_a_layer_needs_no_copies() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(48, 48, dtype=torch.bfloat16) / 7 for _ in range(4)]

    def layer(x: Tensor) -> list[Tensor]:
        q, k, v = ((x @ w).view(BATCH, TOKENS, HEADS, WIDTH).transpose(1, 2) for w in weights[:3])
        mixed = torch.softmax(q @ k.mT * 0.25, -1) @ v
        return [mixed.transpose(1, 2).reshape(BATCH, TOKENS, 48) @ weights[3]]

    assert _count(layer, torch.randn(BATCH, TOKENS, 48, dtype=torch.bfloat16)) == 1
    (report,) = last_reports()
    assert not report.kernels


def test_shared_keys_and_other_lengths() -> None:
    q = _heads()[0][:, :, :4]
    k, v = (t[:, :1].expand(-1, HEADS, -1, -1) for t in _heads(1)[1:])
    assert _count(_plain, q, k, v) == 1


@pytest.mark.slow
def test_dynamic_sizes() -> None:
    compiled = torch.compile(_plain, backend="polyfuse", dynamic=True, options={"backends": ["interpreter"]})
    for tokens in (10, 7):
        operands = [t[:, :, :tokens] for t in _heads()]
        with torch.no_grad():
            torch.testing.assert_close(compiled(*operands), _plain(*operands), rtol=2e-2, atol=2e-2)


def test_not_what_is_read_besides_nor_other_arithmetic() -> None:
    def others(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        q = q / 4  # scores whose rounding to 16 bits changes little
        weights, scores = torch.softmax(q @ k.mT, -1), q @ v.mT
        return [
            *(weights @ v, weights),
            *(torch.softmax(scores, -1) @ v, scores),
            torch.softmax(q @ k.mT * 0.5, -2) @ v,
            torch.softmax(torch.tanh(q @ k.mT), -1) @ v,
            # one number for all keys, and none that hides them
            torch.softmax(q @ k.mT + q[..., :1], -1) @ v,
            torch.softmax((q @ k.mT).masked_fill(q[..., :TOKENS] > 0, -5.0), -1) @ v,
        ]

    assert _count(others, *_heads()) == 0


def _hidden(seed: int = 3) -> Tensor:
    """Where keys are hidden: at random, and in one row all of them."""
    torch.manual_seed(seed)
    hidden = torch.rand(TOKENS, TOKENS) > 0.6
    hidden[2] = True
    return hidden


@pytest.mark.quick(1)
def test_masks_and_biases() -> None:
    bias = torch.randn(HEADS, 1, TOKENS, dtype=torch.bfloat16)
    hidden = _hidden()
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16).masked_fill(hidden, -torch.inf)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        def of(scores: Tensor) -> Tensor:
            return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

        least = torch.finfo(q.dtype).min
        return [
            of(q @ k.mT + mask),
            of(bias + q @ k.mT * 0.25),
            of(((q @ k.mT + bias) * 0.5 + mask) / 2),
            of((q @ k.mT).masked_fill(hidden, least)),
            of((q @ k.mT * 0.25 + bias).masked_fill(hidden, -torch.inf)),
        ]

    assert _count(masked, *_heads()) == 5


@pytest.mark.parametrize("outer", [BATCH * HEADS, 1])
def test_biases_that_a_matmul_adds(outer: int) -> None:
    bias = torch.randn(outer, 1, TOKENS, dtype=torch.bfloat16)
    mask = torch.zeros(TOKENS, TOKENS, dtype=torch.bfloat16).masked_fill(_hidden(), -torch.inf)

    def biased(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        q, k, v = (t.reshape(BATCH * HEADS, TOKENS, WIDTH) for t in (q, k, v))
        scores = bias.baddbmm(q, k.transpose(1, 2), alpha=0.25).view(BATCH, HEADS, TOKENS, TOKENS) + mask
        weights = torch.softmax(scores, -1).view(BATCH * HEADS, TOKENS, TOKENS)
        return [torch.bmm(weights, v).view(BATCH, HEADS, TOKENS, WIDTH)]

    assert _count(biased, *_heads()) == 1


def test_not_without_keys_nor_by_a_negative_factor() -> None:
    """torch's kernel divides by the number of keys, and takes the largest score before it multiplies."""
    q, k, v = _heads()
    assert _count(_plain, q, k[:, :, :0], v[:, :, :0]) == 0
    assert _count(lambda q, k, v: [torch.softmax(q @ k.mT * -0.25, -1) @ v], q, k, v) == 0


def test_not_weights_that_are_viewed_in_another_shape() -> None:
    def viewed(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        weights = torch.softmax(q @ k.mT * 0.25, -1).view(BATCH * HEADS, 5, TOKENS)
        return [torch.bmm(weights, v.reshape(BATCH * HEADS, TOKENS, WIDTH))]

    q, k, v = _heads()
    assert _count(viewed, q, k[:, :, :5], v) == 0


def test_not_values_of_another_width() -> None:
    assert _count(lambda q, k, v: _plain(q, k, v[..., :8]), *_heads()) == 0


def test_not_in_f32_nor_rounded_as_eager_mode_does() -> None:
    assert _count(_plain, *_heads(dtype=torch.float32)) == 0
    assert _count(_plain, *_heads(), numerics="eager") == 0


def test_not_where_the_device_does_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "spelled_attention", {})
    assert _count(lambda q, k, v: _plain(q * 2, k, v), *_heads()) == 0


def test_from_how_many_queries_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "spelled_attention", {torch.float32: TOKENS})
    q, k, v = _heads(dtype=torch.float32)
    # other functions than above: the cache knows those
    assert _count(lambda q, k, v: _plain(q * 3, k, v), q, k, v) == 1
    assert _count(lambda q, k, v: _plain(q * 3, k, v), q[:, :, 1:], k, v) == 0


def test_bf16_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert (torch.bfloat16 in HostDevice.spelled_attention) == host_switches.multiplies_bf16()
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert not host_switches.multiplies_bf16()


def test_training_is_left_alone() -> None:
    leaves = [t.requires_grad_() for t in _heads()]
    reset_reports()
    compiled = torch.compile(_plain, backend="polyfuse", options={"backends": ["interpreter"]})
    compiled(*leaves)[0].float().sum().backward()
    assert all("fuse-attention" not in dict(report.rewrites) for report in last_reports())
