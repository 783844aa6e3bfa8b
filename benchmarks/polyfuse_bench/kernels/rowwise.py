"""Kernels over rows: softmax, norms, losses, reductions and scans."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from polyfuse_bench.kernels.case import Arguments, KernelCase, matrix, of, rows_by_columns


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, dim=-1)


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax((scores * 0.125).masked_fill(mask, float("-inf")), dim=-1)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def residual_layer_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return F.layer_norm(x + y, x.shape[-1:], weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As the Llama family writes it: computed in float32 whatever the input."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return weight * scaled.to(x.dtype)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)


def sum_last(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def sum_first(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def sum_all(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def var_mean(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var_mean(x, dim=-1)


def argmax(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(-1)


def cumsum(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(-1)


def one(size: str) -> Arguments:
    return (matrix(size),)


def one_bf16(size: str) -> Arguments:
    return (matrix(size, torch.bfloat16),)


def with_mask(size: str) -> Arguments:
    x = matrix(size)
    mask = torch.rand_like(x) < 0.3
    mask[:, 0] = False
    return x, mask


def with_weight(size: str) -> Arguments:
    x = matrix(size)
    return x, torch.randn(x.shape[-1])


def with_weight_bf16(size: str) -> Arguments:
    return tuple(value.bfloat16() for value in with_weight(size))


def with_weight_and_bias(size: str) -> Arguments:
    x, weight = with_weight(size)
    return x, weight, torch.randn(x.shape[-1])


def pair_with_weight_and_bias(size: str) -> Arguments:
    x, weight, bias = with_weight_and_bias(size)
    return x, torch.randn_like(x), weight, bias


def logits_and_target(size: str) -> Arguments:
    shape = of(size, rows_by_columns(size), (256, 8192), (8192, 32768))
    return torch.randn(shape), torch.randint(0, shape[1], (shape[0],))


ROWWISE = (
    KernelCase("softmax", "rows", softmax, one),
    KernelCase("softmax_bf16", "rows", softmax, one_bf16),
    KernelCase("softmax_train", "rows", softmax, one, backward=True),
    KernelCase("log_softmax", "rows", log_softmax, one),
    KernelCase("masked_softmax", "rows", masked_softmax, with_mask),
    KernelCase("layer_norm", "rows", layer_norm, with_weight_and_bias),
    KernelCase("layer_norm_train", "rows", layer_norm, with_weight_and_bias, backward=True),
    KernelCase("residual_layer_norm", "rows", residual_layer_norm, pair_with_weight_and_bias),
    KernelCase("rms_norm", "rows", rms_norm, with_weight),
    KernelCase("rms_norm_bf16", "rows", rms_norm, with_weight_bf16),
    KernelCase("rms_norm_train", "rows", rms_norm, with_weight, backward=True),
    KernelCase("cross_entropy", "loss", cross_entropy, logits_and_target),
    KernelCase("cross_entropy_train", "loss", cross_entropy, logits_and_target, backward=True),
    KernelCase("sum_last", "reduction", sum_last, one),
    KernelCase("sum_first", "reduction", sum_first, one),
    KernelCase("sum_all", "reduction", sum_all, one),
    KernelCase("var_mean", "reduction", var_mean, one),
    KernelCase("argmax", "reduction", argmax, one),
    KernelCase("cumsum", "scan", cumsum, one),
)
