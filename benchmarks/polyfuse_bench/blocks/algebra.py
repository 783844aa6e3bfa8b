"""Contractions, distances and complex numbers."""

from __future__ import annotations

from typing import Any

import torch

from polyfuse_bench.blocks.block import Block, function, given


def _contractions() -> list[Block]:
    g = "contractions"
    return [
        function(
            g, "einsum_bmm", lambda x, y: torch.einsum("bij,bjk->bik", x, y), (16, 64, 64), (16, 64, 64)
        ),
        function(
            g,
            "einsum_heads",
            lambda x, y: torch.einsum("bihd,bjhd->bhij", x, y),
            (2, 128, 8, 32),
            (2, 128, 8, 32),
        ),
        function(g, "einsum_outer", lambda x, y: torch.einsum("bi,bj->bij", x, y), (64, 128), (64, 128)),
        function(
            g,
            "einsum_three",
            lambda x, w, y: torch.einsum("bi,ijk,bj->bk", x, w, y),
            (64, 32),
            (32, 32, 32),
            (64, 32),
        ),
        function(g, "matmul", lambda x, y: x @ y, (256, 256), (256, 256)),
        function(g, "matmul_vector", lambda x, y: x @ y, (2048, 1024), (1024,)),
        function(g, "outer", torch.outer, (1024,), (1024,)),
        function(g, "kron", torch.kron, (32, 32), (24, 24)),
        function(g, "cdist", torch.cdist, (512, 64), (512, 64), low=False),
        function(g, "cdist_l1", lambda x, y: torch.cdist(x, y, 1.0), (256, 64), (256, 64), low=False),
        function(g, "cdist_batches", torch.cdist, (4, 20, 3), (4, 2000, 3), low=False),
        function(g, "pdist", torch.pdist, (256, 64), low=False),
        function(g, "cross", torch.cross, (65536, 3), (65536, 3)),
        function(g, "baddbmm", torch.baddbmm, (16, 64, 64), (16, 64, 64), (16, 64, 64)),
    ]


def _complex() -> list[Block]:
    g, x = "complex", (512, 512)

    def pairs() -> tuple[Any, ...]:
        return torch.randn(x, dtype=torch.complex64), torch.randn(x, dtype=torch.complex64)

    return [
        given(g, "complex_mul", lambda x, y: x * y + x, pairs, low=False),
        given(g, "complex_abs", lambda x, y: (x * y).abs(), pairs, low=False),
        given(g, "complex_exp", lambda x, y: (x * y).exp(), pairs, low=False),
        given(g, "complex_div", lambda x, y: x / y, pairs, low=False),
        given(g, "complex_matmul", lambda x, y: x[:128] @ y[:, :128], pairs, low=False),
        function(g, "rfft", lambda x: torch.fft.rfft(x).abs(), x, low=False),
        function(g, "fft2", lambda x: torch.fft.ifft2(torch.fft.fft2(x) * 2).real, x, low=False),
        function(
            g,
            "stft",
            lambda x: torch.stft(x, 256, 64, window=torch.ones(256), return_complex=True).abs(),
            (4, 16384),
            low=False,
        ),
        given(
            g,
            "polar",
            lambda r, a: torch.polar(r.abs(), a),
            lambda: (torch.randn(x), torch.randn(x)),
            low=False,
        ),
        given(
            g,
            "rotary_complex",
            lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)),
            lambda: (torch.randn(4, 128, 8, 32, 2), torch.randn(128, 1, 32, 2)),
            low=False,
        ),
    ]


ALGEBRA = (*_contractions(), *_complex())
