"""The kernels of whole models, forward and backward, beside the interpreter: none is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from polyfuse_bench.models import MAIN_FAMILIES, Size, family, flatten_outputs, prepare
from torch import Tensor, nn

from models import checks
from polyfuse.checking import tally


class Block(nn.Module):
    """A transformer's block, with dropout, residuals, and an embedding that is the last weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.norm = nn.LayerNorm(24)
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)
        scores = (x @ self.embedding.weight.t()).flatten(0, 1)
        return F.cross_entropy(scores, tokens.flatten(), reduction="none")


class Convolutions(nn.Module):
    """Down and up again: running statistics, pooling, interpolation, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Hardswish())
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        coarse = self.second(F.max_pool2d(fine, 2))
        both = torch.cat([fine, F.interpolate(coarse, scale_factor=2, mode="bilinear")], 1)
        out: Tensor = self.last(both)
        return out.softmax(1)


class Recurrence(nn.Module):
    """Gates by hand, with running sums, a sort, and a scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        update, reset, new = self.gates(x).chunk(3, -1)
        state = torch.sigmoid(update) * torch.tanh(new) + (1 - torch.sigmoid(reset)) * x
        ranked = state.cumsum(1).sort(-1).values
        position = x.argsort(-1)
        return torch.zeros_like(state).scatter_add(-1, position, ranked) + F.rms_norm(state, (16,))


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.dtype], Tensor]]] = {
    "block": (Block, lambda dtype: torch.randint(0, 50, (3, 11))),
    "convolutions": (Convolutions, lambda dtype: torch.randn(2, 3, 12, 12, dtype=dtype)),
    "recurrence": (Recurrence, lambda dtype: torch.randn(3, 9, 16, dtype=dtype)),
}
QUICK = ("block-float32", "convolutions-float32", "recurrence-bfloat16")


def models() -> list[object]:
    """Ten, in two types."""
    out = []
    for name in (*MODULES, *MAIN_FAMILIES):
        for dtype in (torch.float32, torch.bfloat16):
            label = f"{name}-{str(dtype).removeprefix('torch.')}"
            marks = () if label in QUICK else (pytest.mark.slow,)
            out.append(pytest.param(name, dtype, id=label, marks=marks))
    return out


@pytest.mark.quick(1)
@pytest.mark.parametrize("name, dtype", models())
def test_no_kernel_is_reported(
    name: str, dtype: torch.dtype, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    tally.begin(forget=False)
    options = {"check": "first"}
    if name in MODULES:
        torch.manual_seed(0)
        build, make = MODULES[name]
        model = build().to(dtype)
        found = checks.compile_function(model, options=options)(make(dtype))
        (found * torch.randn_like(found)).sum().backward()
    else:
        prepared = prepare(family(name), Size.TINY, batch=2, train=True, dtype=dtype)
        leaves = flatten_outputs(checks.compile_function(prepared.model, options=options)(**prepared.inputs))
        sum((x * torch.randn_like(x)).sum() for x in leaves if x.requires_grad).backward()  # type: ignore
    result = tally.result()
    assert not result.findings, "\n".join(map(str, result.findings))
    assert result.launches >= 3 and not result.skipped, result.skipped
