"""Modules of sequences: recurrent cells and layers, attention, embeddings, and small blocks of networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polyfuse_bench.blocks.block import Block, Made, function, given, layer


def _recurrent() -> list[Block]:
    g = "recurrent"

    def cell(build: Any, *states: int) -> Any:
        def make() -> Made:
            state = tuple(torch.randn(64, 256) for _ in states)
            return build(256, 256), (torch.randn(64, 256), state if len(state) > 1 else state[0])

        return make

    return [
        Block("rnn_cell", g, cell(nn.RNNCell, 1)),
        Block("gru_cell", g, cell(nn.GRUCell, 1)),
        Block("lstm_cell", g, cell(nn.LSTMCell, 1, 1)),
        layer(g, "rnn", lambda: nn.RNN(64, 64, batch_first=True), 8, 32, 64),
        layer(g, "gru", lambda: nn.GRU(64, 64, batch_first=True), 8, 32, 64),
        layer(g, "lstm", lambda: nn.LSTM(64, 64, batch_first=True), 8, 32, 64),
        layer(g, "lstm_both", lambda: nn.LSTM(64, 64, 2, bidirectional=True), 16, 8, 64),
    ]


def _indices(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape)


def _bag(mode: str) -> Any:
    def make() -> Made:
        return nn.EmbeddingBag(5000, 128, mode=mode), (_indices(256, 20, below=5000),)

    return make


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(256, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(256, 688), nn.Linear(256, 688), nn.Linear(688, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class _Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


def _plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2)) / 8.0
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def _rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def _attention() -> list[Block]:
    g, heads = "attention", (2, 8, 256, 64)
    return [
        Block("multihead", g, lambda: (_Attention(), (torch.randn(4, 128, 256),))),
        function(g, "sdpa", F.scaled_dot_product_attention, heads, heads, heads),
        function(
            g,
            "sdpa_causal",
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            heads,
            heads,
            heads,
        ),
        function(g, "plain_causal", _plain_attention, heads, heads, heads),
        function(g, "rotary", _rotary, (4, 8, 256, 64), (256, 64), (256, 64)),
        layer(
            g,
            "encoder_layer",
            lambda: nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True),
            4,
            64,
            128,
        ),
        layer(g, "gated_mlp", _Gated, 128, 256),
        layer(g, "mlp", lambda: nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)), 64, 512),
        layer(g, "squeeze_excite", _Squeeze, 8, 64, 28, 28),
        Block("bilinear", g, lambda: (nn.Bilinear(64, 64, 64), (torch.randn(128, 64), torch.randn(128, 64)))),
    ]


def _embeddings() -> list[Block]:
    g = "embeddings"
    return [
        Block("embedding", g, lambda: (nn.Embedding(5000, 256), (_indices(32, 64, below=5000),))),
        Block("embedding_bag_sum", g, _bag("sum")),
        Block("embedding_bag_mean", g, _bag("mean")),
        Block("embedding_bag_max", g, _bag("max")),
        given(g, "one_hot", lambda i: F.one_hot(i, 256), lambda: (_indices(4096, below=256),), trains=False),
    ]


SEQUENCES = (*_recurrent(), *_attention(), *_embeddings())
