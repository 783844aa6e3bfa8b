"""One step of decoding by a Llama with a static cache: the weights are read once for a few rows, so that
the memory's rate is the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE, compiled
from polyfuse_bench.devices import CPU, read_rate, waiter
from polyfuse_bench.narrow_layers import STORED, narrowed
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

GRAPHS = "reduce-overhead"
TUNED = "max-autotune"
CANDIDATES = (EAGER, *(f"{name}:{mode}" for mode in (GRAPHS, TUNED) for name in (INDUCTOR, POLYFUSE)))
ON_CPU = (EAGER, INDUCTOR, POLYFUSE)
"""Who is compared unless the command line says otherwise: with device graphs, where there is a device."""


@dataclass(frozen=True)
class Case:
    """A decoder's sizes; `batch` sequences of which `length` positions are in the cache. `stored`: a type for
    all, in place of the command line's, or the bits of the layers' weights, all else being bf16.
    """

    name: str
    width: int
    heads: int
    kv_heads: int
    inner: int
    layers: int
    vocabulary: int
    batch: int
    length: int = 1024
    stored: str = ""

    def dtype(self, asked: str) -> str:
        """Of activations."""
        return "bfloat16" if self.stored in STORED else self.stored or asked


def _cases() -> Mapping[str, Case]:
    found = [Case("tiny_1", 64, 4, 2, 96, 2, 128, 1, 16)]
    for batch in (1, 8, 32, 64):
        found.append(Case(f"1b_{batch}", 2048, 32, 8, 8192, 16, 128256, batch))
        # a quarter of the 8B model's layers: each takes the same time
        found.append(Case(f"8b_{batch}", 4096, 32, 8, 14336, 8, 128256, batch))
    for stored in ("float32", "bfloat16", *STORED):
        found.append(Case(f"two_layers_{stored}", 2048, 32, 8, 8192, 2, 32000, 1, stored=stored))
    return {case.name: case for case in found}


def cases_of(device: str) -> list[str]:
    """Names of what is measured there: on the CPU, types of weights."""
    return [name for name, case in CASES.items() if bool(case.stored) == (device == CPU)]


CASES = _cases()


class Layer(nn.Module):
    """A decoder's layer. Sizes: (batch, 1, width) to the same."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.size = case.width // case.heads
        linear = lambda a, b: nn.Linear(a, b, bias=False)  # noqa: E731
        self.norm, self.norm2 = nn.RMSNorm(case.width, eps=1e-5), nn.RMSNorm(case.width, eps=1e-5)
        self.q, self.o = linear(case.width, case.width), linear(case.width, case.width)
        self.k, self.v = (linear(case.width, case.kv_heads * self.size) for _ in range(2))
        self.gate, self.up = linear(case.width, case.inner), linear(case.width, case.inner)
        self.down = linear(case.inner, case.width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(case.batch, case.kv_heads, case.length, self.size))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Decoder(nn.Module):
    """The next word of each sequence. Sizes: words (batch, 1), position (1,) to (batch, 1)."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.words = nn.Embedding(case.vocabulary, case.width)
        self.layers = nn.ModuleList(Layer(case) for _ in range(case.layers))
        self.norm = nn.RMSNorm(case.width, eps=1e-5)
        self.head = nn.Linear(case.width, case.vocabulary, bias=False)
        size = case.width // case.heads
        angles = torch.arange(case.length)[:, None] * 500000.0 ** -(torch.arange(0, size, 2) / size)
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())
        self.register_buffer("slots", torch.arange(case.length))

    def forward(self, words: Tensor, position: Tensor) -> Tensor:
        x = self.words(words)
        cos, sin = self.cos[position], self.sin[position]
        seen = (self.slots <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, cos, sin, position, seen)
        return self.head(self.norm(x)).float()

    def bytes_read(self) -> int:
        """Of weights and caches, in one step."""
        held = (*self.layers.state_dict().values(), *self.head.state_dict().values())
        return sum(t.numel() * t.element_size() for t in held)


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`."""
    case, device = CASES[task["name"]], task.get("device", CPU)
    torch.manual_seed(0)
    name = case.dtype(task["dtype"])
    dtype = getattr(torch, name)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        try:
            model = Decoder(case).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        if case.stored in STORED:
            narrowed(model, case.stored)
        words = torch.randint(case.vocabulary, (case.batch, 1))
        position = torch.tensor([case.length - 1])

    def prepare(backend: str) -> Callable[[], Tensor]:
        call = compiled(model, backend)
        return lambda: call(words, position)

    with torch.no_grad():
        outcome = side_by_side(task["backends"], prepare, Effort(**task["effort"]), wait=waiter(device))
    facts = {"read_rate": read_rate()} if device == CPU else {}
    return {"name": case.name, "dtype": name, "moved_bytes": model.bytes_read(), **facts, **outcome}
