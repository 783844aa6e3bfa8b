"""Flexible attention with the scores and masks of known models, forward and with its gradients; where torch's
attention knows the mask, beside that too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE, SDPA, compiled
from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

CANDIDATES = (EAGER, SDPA, INDUCTOR, POLYFUSE)
"""Who is compared unless the command line says otherwise."""
_BATCH, _HEADS, _LENGTH = 2, 16, 4096
_WINDOW, _PREFIX, _CAP = 1024, 1000, 30.0


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def _window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < _WINDOW)


def _prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < _PREFIX) | (q >= k)


def _capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return _CAP * torch.tanh(s / _CAP)


@dataclass(frozen=True)
class Case:
    """A mask and a score by name, the length of a query, and whether gradients are wanted."""

    kind: str
    depth: int
    train: bool

    @property
    def name(self) -> str:
        """As the command line calls it."""
        return f"{self.kind}_{self.depth}{'_train' if self.train else ''}"

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return _HEADS // 4 if self.kind == "groups" else _HEADS


_KINDS = ("full", "causal", "alibi", "window_cap", "documents", "prefix", "groups")
_KNOWN = ("full", "causal", "groups")
"""What torch's attention computes, too."""
CASES: Mapping[str, Case] = {
    case.name: case
    for train in (False, True)
    for depth in (64, 128)
    for case in (Case(kind, depth, train) for kind in _KINDS)
}


def _functions(kind: str, device: str) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """The score and the mask of a kind."""
    slopes = torch.exp2(-0.5 * torch.arange(1, _HEADS + 1, device=device))
    documents = torch.arange(_LENGTH, device=device) // 700

    def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + slopes[h] * (k - q)

    def same(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (documents[q] == documents[k]) & (q >= k)

    return {
        "full": (None, None),
        "causal": (None, _causal),
        "alibi": (alibi, None),
        "window_cap": (_capped, _window),
        "documents": (None, same),
        "prefix": (None, _prefix),
        "groups": (None, _causal),
    }[kind]


def _attention(kind: str, device: str) -> Callable[..., torch.Tensor]:
    score, mask = _functions(kind, device)
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, None, None, _LENGTH, _LENGTH, device=device)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found = flex_attention(
            q, k, v, score_mod=score, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1]
        )
        assert isinstance(found, torch.Tensor)
        return found

    return call


def _library(kind: str) -> Callable[..., torch.Tensor]:
    if kind not in _KNOWN:
        raise ValueError("torch's attention does not know this mask")

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=kind != "full", enable_gqa=q.shape[1] != k.shape[1]
        )

    return call


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`."""
    case, device = CASES[task["name"]], task.get("device", CPU)
    torch.manual_seed(0)
    dtype = getattr(torch, task["dtype"])
    operands = [
        torch.randn(_BATCH, heads, _LENGTH, case.depth, dtype=dtype, device=device, requires_grad=case.train)
        for heads in (_HEADS, case.key_heads, case.key_heads)
    ]
    weights = torch.randn_like(operands[0])
    attention = _attention(case.kind, device)

    def prepare(backend: str) -> Callable[[], Any]:
        call = _library(case.kind) if backend == SDPA else compiled(attention, backend)
        if not case.train:
            return lambda: call(*operands)
        return lambda: torch.autograd.grad(call(*operands), operands, weights)

    with torch.set_grad_enabled(case.train):
        backends = [name for name in task["backends"] if name != SDPA or case.kind in _KNOWN]
        outcome = side_by_side(backends, prepare, Effort(**task["effort"]), wait=waiter(device))
    return {"name": case.name, "dtype": task["dtype"], "train": case.train, **outcome}
