"""A machine without any compiler: the default order turns to Halide, and a transformer runs and learns."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from polyfuse.compiler.session import _SESSIONS, forget_sessions
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No program on the search path, no compiler named, nothing built before; the warnings given."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("polyfuse")
    logger.addHandler(handler)
    torch.compiler.reset()
    forget_sessions()
    yield said
    logger.removeHandler(handler)
    torch.compiler.reset()
    forget_sessions()


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a normalisation and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """A block between an embedding and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.block = Block(32, 4)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.block(self.embed(tokens)))[:, :-1]
        return nn.functional.cross_entropy(logits.reshape(-1, 50), tokens[:, 1:].reshape(-1))


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_transformer_learns(bare, dynamic):
    torch.manual_seed(0)
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    options = {"backends": ["halide", "interpreter"]}
    compiled = torch.compile(model, backend="polyfuse", dynamic=dynamic, options=options)
    for length in (11, 17) if dynamic else (11,):
        tokens = torch.randint(0, 50, (3, length))
        loss, wanted = compiled(tokens), twin(tokens)
        torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-5)
        loss.backward()
        wanted.backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
    assert bare == []


def test_the_default_order_turns_to_halide(bare):
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    x = torch.randn(3, 40)
    torch.testing.assert_close(torch.compile(f, backend="polyfuse")(x), f(x))
    names = {backend.name for session in _SESSIONS.values() for backend in session.backends("cpu")}
    assert "halide" in names and "cpp" not in names
    (text,) = bare
    assert "'cpp'" in text and "'halide'" in text
