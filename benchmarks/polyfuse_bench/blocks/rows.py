"""Reductions, scans and sorting of rows, and what reads or writes where indices say."""

from __future__ import annotations

from typing import Any

import torch

from polyfuse_bench.blocks.block import Block, function, given


def _scans() -> list[Block]:
    g, x = "scans", (512, 1024)
    return [
        function(g, "cumsum", lambda x: x.cumsum(-1), x),
        function(g, "cumsum_columns", lambda x: x.cumsum(0), x),
        function(g, "cumprod", lambda x: x.cumprod(-1), (512, 64)),
        function(g, "cummax", lambda x: x.cummax(-1), x),
        function(g, "cummax_columns", lambda x: x.cummax(0), x),
        function(g, "logcumsumexp", lambda x: x.logcumsumexp(-1), x),
        function(g, "sort", lambda x: x.sort(-1), x),
        function(g, "sort_columns", lambda x: x.sort(0), (512, 256)),
        function(g, "argsort_long", lambda x: x.sort(-1)[0], (4, 65536)),
        function(g, "topk", lambda x: x.topk(8), x),
        function(g, "topk_long", lambda x: x.topk(50), (8, 32000)),
        function(g, "kthvalue", lambda x: x.kthvalue(10), x),
        function(g, "median", lambda x: x.median(-1), x),
        function(g, "argmax", lambda x: x.argmax(-1) + 0 * x.sum().long(), x),
        function(g, "max_columns", lambda x: x.max(0), x),
        function(g, "std", lambda x: x.std(-1), x),
        function(g, "std_columns", lambda x: x.std(0), x),
        function(g, "logsumexp", lambda x: x.logsumexp(-1), x),
        function(g, "prod", lambda x: x.prod(-1), x),
        function(g, "norm", lambda x: x.norm(dim=-1), x),
        function(g, "sum_all", lambda x: x.sum(), (2048, 1024)),
        function(g, "sum_columns", lambda x: x.sum(0), (2048, 1024)),
        function(g, "any", lambda x: ((x > 3).any(-1), x.sum(-1)), x),
    ]


def _indexing() -> list[Block]:
    g, x = "indexing", (2048, 512)

    def rows(count: int = 2048) -> tuple[Any, ...]:
        return torch.randn(x), torch.randint(0, 2048, (count,))

    def cells() -> tuple[Any, ...]:
        return torch.randn(x), torch.randint(0, 512, x)

    def writes() -> tuple[Any, ...]:
        return *rows(), torch.randn(x)

    def masks() -> tuple[Any, ...]:
        return torch.randn(x), torch.rand(x) < 0.5

    return [
        given(g, "index_select", lambda x, i: x.index_select(0, i), rows),
        given(g, "index_rows", lambda x, i: x[i], rows),
        given(g, "index_columns", lambda x, i: x[:, i % 512], lambda: rows(512)),
        given(g, "gather", lambda x, i: x.gather(1, i), cells),
        given(g, "take_along", lambda x, i: torch.take_along_dim(x, i, 1), cells),
        given(g, "index_add", lambda x, i, y: x.index_add(0, i, y), writes),
        given(g, "index_copy", lambda x, i, y: x.index_copy(0, i, y), lambda: _unique(x)),
        given(g, "index_put", lambda x, i, y: x.index_put((i,), y), lambda: _unique(x)),
        given(g, "scatter_add", lambda x, i: x.scatter_add(1, i, x.detach()), cells),
        given(g, "scatter_reduce", lambda x, i: x.scatter_reduce(1, i, x.detach(), "amax"), cells),
        given(g, "masked_fill", lambda x, m: x.masked_fill(m, 0.0), masks),
        given(g, "where", lambda x, m: torch.where(m, x, x * 2), masks),
        function(g, "roll", lambda x: x.roll(7, 0), x),
        function(g, "flip", lambda x: x.flip(1), x),
        function(g, "tril", lambda x: x.tril(), (1024, 1024)),
        function(g, "transposed", lambda x: x.transpose(0, 1).contiguous(), x),
        function(g, "heads", lambda x: x.view(4, 128, 8, 64).transpose(1, 2).contiguous(), (4, 128, 512)),
        function(g, "concatenated", lambda x, y: torch.cat((x, y), 1), x, x),
        function(g, "stacked", lambda x, y: torch.stack((x, y), -1), x, x),
        function(g, "repeat_interleave", lambda x: x.repeat_interleave(2, 0), x),
        function(g, "repeated", lambda x: x.repeat(2, 2), (1024, 256)),
        function(g, "windows", lambda x: x.unfold(1, 16, 8).contiguous(), x),
        given(
            g,
            "searchsorted",
            lambda x, y: torch.searchsorted(x, y) + 0 * y.long(),
            lambda: (torch.randn(1024).sort()[0], torch.randn(512, 256)),
            trains=False,
        ),
        given(
            g,
            "bucketize",
            lambda y, x: torch.bucketize(y, x),
            lambda: (torch.randn(512, 512), torch.randn(64).sort()[0]),
            trains=False,
        ),
        given(
            g,
            "bincount",
            lambda i: torch.bincount(i, minlength=256),
            lambda: (torch.randint(0, 256, (400_000,)),),
            trains=False,
        ),
    ]


def _unique(shape: tuple[int, int]) -> tuple[Any, ...]:
    return torch.randn(shape), torch.randperm(shape[0])[:1024], torch.randn(1024, shape[1])


ROWS = (*_scans(), *_indexing())
