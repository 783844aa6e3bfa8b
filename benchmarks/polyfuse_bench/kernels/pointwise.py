"""Elementwise chains, activations, rotary embedding, copies and the optimiser's step."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from polyfuse_bench.kernels.case import Arguments, KernelCase, matrix, of


def bias_gelu_residual(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias) + residual


def bias_gelu_tanh(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias, approximate="tanh")


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cheap arithmetic alone: bound by memory once fused."""
    z = (x * 2.0 + y).relu() - 0.5 * y
    return z.clamp(-1.0, 3.0) * x + z.abs()


def transcendental(x: torch.Tensor) -> torch.Tensor:
    """Expensive functions: bound by vectorised mathematics."""
    return torch.tanh(x) * torch.exp(-x.square()) + torch.sin(x) * torch.log1p(x.abs())


def rotary(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    def swapped(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    return query * cos + swapped(query) * sin, key * cos + swapped(key) * sin


def transpose_copy(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


def transpose_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() + y


def heads_transpose(x: torch.Tensor) -> torch.Tensor:
    """(batch, sequence, heads, width) to (batch, heads, sequence, width), as attention does it."""
    return x.transpose(1, 2).contiguous()


def concatenate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat((x * 2.0, y.relu()), dim=-1)


def adam_step(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    means: list[torch.Tensor],
    squares: list[torch.Tensor],
) -> None:
    """One step of Adam with weight decay on many tensors at once, in place."""
    torch._foreach_mul_(parameters, 1.0 - 1e-3 * 1e-2)
    torch._foreach_lerp_(means, gradients, 1.0 - 0.9)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - 0.999)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_div_(denominators, 0.97)
    torch._foreach_add_(denominators, 1e-8)
    torch._foreach_addcdiv_(parameters, means, denominators, -1e-3)


def one(size: str) -> Arguments:
    return (matrix(size),)


def two(size: str) -> Arguments:
    return matrix(size), matrix(size)


def two_bf16(size: str) -> Arguments:
    return matrix(size, torch.bfloat16), matrix(size, torch.bfloat16)


def with_bias(size: str) -> Arguments:
    x = matrix(size)
    return x, torch.randn(x.shape[-1])


def with_bias_and_residual(size: str) -> Arguments:
    return (*with_bias(size), matrix(size))


def with_bias_and_residual_bf16(size: str) -> Arguments:
    return tuple(value.bfloat16() for value in with_bias_and_residual(size))


def against_transposed(size: str) -> Arguments:
    x = matrix(size)
    return x, torch.randn(x.shape[1], x.shape[0])


def attention_heads(size: str) -> Arguments:
    return (torch.randn(*of(size, (1, 16, 4, 16), (4, 512, 16, 64), (16, 2048, 32, 64))),)


def rotary_arguments(size: str) -> Arguments:
    batch, heads, sequence, width = of(size, (1, 2, 16, 16), (2, 16, 512, 64), (8, 32, 4096, 64))
    angles = torch.randn(1, 1, sequence, width)
    query, key = (torch.randn(batch, heads, sequence, width) for _ in range(2))
    return query, key, angles.cos(), angles.sin()


def adam_arguments(size: str) -> Arguments:
    shapes = of(
        size,
        [(16, 64), (64,)] * 2,
        [(768, 768), (768,), (3072, 768), (3072,)] * 2,
        [(2048, 2048), (2048,), (8192, 2048), (8192,)] * 8,
    )
    parameters, gradients, means = ([torch.randn(shape) for shape in shapes] for _ in range(3))
    return parameters, gradients, means, [torch.rand(shape) for shape in shapes]


POINTWISE = (
    KernelCase("bias_gelu_residual", "pointwise", bias_gelu_residual, with_bias_and_residual),
    KernelCase("bias_gelu_residual_bf16", "pointwise", bias_gelu_residual, with_bias_and_residual_bf16),
    KernelCase("bias_gelu_tanh", "pointwise", bias_gelu_tanh, with_bias),
    KernelCase(
        "bias_gelu_residual_train", "pointwise", bias_gelu_residual, with_bias_and_residual, backward=True
    ),
    KernelCase("swiglu", "pointwise", swiglu, two),
    KernelCase("swiglu_bf16", "pointwise", swiglu, two_bf16),
    KernelCase("chain", "pointwise", chain, two),
    KernelCase("chain_bf16", "pointwise", chain, two_bf16),
    KernelCase("transcendental", "pointwise", transcendental, one),
    KernelCase("rotary", "pointwise", rotary, rotary_arguments),
    KernelCase("cat", "copies", concatenate, two),
    KernelCase("transpose_copy", "copies", transpose_copy, one),
    KernelCase("transpose_add", "copies", transpose_add, against_transposed),
    KernelCase("heads_transpose", "copies", heads_transpose, attention_heads),
    KernelCase("adam_step", "optimiser", adam_step, adam_arguments, mutates=True),
)
