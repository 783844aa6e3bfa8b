"""Activations and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polyfuse_bench.blocks.block import Block, function, given, layer

_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Softshrink,
    nn.Hardshrink,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Sigmoid,
    nn.Tanh,
    nn.Tanhshrink,
    nn.PReLU,
    nn.GLU,
)


def _activations() -> list[Block]:
    x = (1024, 512)
    rows = [layer("activations", build.__name__.lower(), build, *x) for build in _ACTIVATIONS]
    return [
        *rows,
        layer("activations", "softmax", lambda: nn.Softmax(-1), *x),
        layer("activations", "softmax_columns", lambda: nn.Softmax(0), *x),
        layer("activations", "log_softmax", lambda: nn.LogSoftmax(-1), *x),
        layer("activations", "softmin", lambda: nn.Softmin(-1), *x),
        layer("activations", "softmax2d", lambda: nn.Softmax2d(), 4, 32, 64, 64),
        layer("activations", "erfinv", lambda: _Applied(lambda x: torch.erfinv(x.tanh())), *x),
        layer("activations", "sin_cos", lambda: _Applied(lambda x: x.sin() + x.cos()), *x),
        layer("activations", "power", lambda: _Applied(lambda x: x.abs() ** 1.7), *x),
        layer("activations", "lgamma", lambda: _Applied(lambda x: torch.lgamma(x.abs() + 1)), *x),
    ]


class _Applied(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def _losses() -> list[Block]:
    g, x = "losses", (1024, 512)

    def classes() -> tuple[Any, ...]:
        return torch.randn(2048, 512), torch.randint(0, 512, (2048,))

    def signs() -> tuple[Any, ...]:
        return torch.randn(x), torch.randint(0, 2, x) * 2 - 1

    def parts() -> tuple[Any, ...]:
        return torch.randn(x), torch.rand(x)

    return [
        given(g, "cross_entropy", F.cross_entropy, classes),
        given(g, "cross_entropy_smoothed", nn.CrossEntropyLoss(label_smoothing=0.1), classes),
        given(
            g,
            "cross_entropy_images",
            F.cross_entropy,
            lambda: (torch.randn(2, 21, 128, 128), torch.randint(0, 21, (2, 128, 128))),
        ),
        given(g, "nll", lambda x, y: F.nll_loss(F.log_softmax(x, -1), y), classes),
        given(g, "multi_margin", F.multi_margin_loss, classes),
        function(g, "mse", F.mse_loss, x, x),
        function(g, "l1", F.l1_loss, x, x),
        function(g, "smooth_l1", F.smooth_l1_loss, x, x),
        function(g, "huber", F.huber_loss, x, x),
        given(g, "bce", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), parts),
        given(g, "bce_logits", F.binary_cross_entropy_with_logits, parts),
        given(g, "kl_div", lambda x, y: F.kl_div(F.log_softmax(x, -1), y, reduction="batchmean"), parts),
        given(g, "poisson_nll", F.poisson_nll_loss, parts),
        given(g, "gaussian_nll", lambda x, y: F.gaussian_nll_loss(x, y, y + 0.1), parts),
        given(g, "soft_margin", F.soft_margin_loss, signs),
        given(g, "hinge_embedding", F.hinge_embedding_loss, signs),
        given(g, "multilabel_soft_margin", F.multilabel_soft_margin_loss, parts),
        function(g, "cosine_similarity", F.cosine_similarity, x, x),
        function(g, "triplet_margin", F.triplet_margin_loss, x, x, x),
        function(g, "pairwise_distance", F.pairwise_distance, x, x),
        given(
            g,
            "ctc",
            lambda x, y: F.ctc_loss(F.log_softmax(x, -1), y, (64,) * 16, (20,) * 16),
            lambda: (torch.randn(64, 16, 40), torch.randint(1, 40, (16, 20))),
            low=False,
        ),
    ]


VALUES = (*_activations(), *_losses())
