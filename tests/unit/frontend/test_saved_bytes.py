"""How much a forward saves for its backward on devices, beside what eager mode saves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import checkpoint

from polyfuse.frontend import saved_values
from polyfuse.frontend.describe import output_args
from polyfuse.frontend.saved_values import SHARE, bytes_saved, bytes_saved_by_eager
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import aot

pytestmark = pytest.mark.usefixtures("interpreted_kernels")

ROWS, WIDTH = 64, 32


class Block(nn.Module):
    """Norms and an activation between matmuls: eager mode saves what they read and what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Gate(nn.Module):
    """A chain of which eager mode saves every step."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(torch.sin(torch.exp(torch.cos(self.into(x)).sin()).sin()) * x))


class Cuts:
    """The cuts of joint graphs: what eager mode would save, and what each saves, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_device: bool) -> None:
        self.eager: list[float | None] = []
        self.saved: list[float] = []
        self.names: list[set[str]] = []
        cut, host = aot.min_cut_partition, device_of("cpu").is_host

        def counted(joint: GraphModule, inputs: Any, **named: Any) -> tuple[GraphModule, GraphModule]:
            forward, backward = cut(joint, inputs, **named)
            results = named["num_fwd_outputs"]
            self.saved.append(bytes_saved(forward, results))
            self.names.append({n.name for n in output_args(forward)[results:] if isinstance(n, Node)})
            return forward, backward

        def measured(joint: GraphModule) -> float | None:
            self.eager.append(bytes_saved_by_eager(joint))
            return self.eager[-1]

        class Device:
            is_host = host and not on_device

        monkeypatch.setattr(saved_values, "device_of", lambda kind: Device)
        monkeypatch.setattr("polyfuse.frontend.traced.bytes_saved_by_eager", measured)
        monkeypatch.setattr(aot, "min_cut_partition", counted)


def check_step(model: nn.Module, *, dynamic: bool, rows: Collection[int] = (ROWS,)) -> None:
    model = model.double()
    run: Callable[..., Tensor] = torch.compile(
        model, backend="polyfuse", dynamic=dynamic, options={"strict": True, "graph_cache": False}
    )
    for count in rows:
        x = torch.randn(count, WIDTH, dtype=torch.float64, requires_grad=True)
        given = [x, *model.parameters()]
        weight = torch.randn(count, WIDTH, dtype=torch.float64)
        found = torch.autograd.grad((run(x) * weight).sum(), given)
        torch.testing.assert_close(found, torch.autograd.grad((model(x) * weight).sum(), given))


class Images(nn.Module):
    """Convolutions, of which eager mode saves the operands and the results, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x.view(-1, 1, 4, WIDTH // 4).repeat(1, 1, 3, 1))))
        return y.flatten(1)[:, :WIDTH]


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_few_operands_are_computed_again_as_needed(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    cuts = Cuts(monkeypatch, on_device=True)
    check_step(
        nn.Sequential(Block(), Block()), dynamic=dynamic, rows=(ROWS, ROWS + 8) if dynamic else (ROWS,)
    )
    (eager,) = cuts.eager
    usual, again = cuts.saved
    assert eager is not None and usual > SHARE * eager >= again
    # the largest first: what activations give, not what norms do
    left = cuts.names[0] - cuts.names[1]
    assert 1 <= len(left) <= 2, left


def test_what_is_less_than_eager_mode_saves_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = Cuts(monkeypatch, on_device=True)
    check_step(Gate(), dynamic=False)
    assert len(cuts.saved) == 1 and cuts.eager[0] is not None and cuts.saved[0] < SHARE * cuts.eager[0]


def test_operands_of_convolutions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = Cuts(monkeypatch, on_device=True)
    check_step(Images(), dynamic=False)
    assert len(cuts.saved) == 1 and cuts.eager[0] is not None and cuts.saved[0] > SHARE * cuts.eager[0]


def test_checkpoints_decide_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks[1](checkpoint(self.blocks[0], x, use_reentrant=False))

    cuts = Cuts(monkeypatch, on_device=True)
    check_step(Checkpointed(), dynamic=False)
    assert cuts.eager == [None] and len(cuts.saved) == 1


def test_hosts_save_what_torch_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = Cuts(monkeypatch, on_device=False)
    check_step(nn.Sequential(Block(), Block()), dynamic=False)
    assert cuts.eager == [None] and len(cuts.saved) == 1


class Pooled(nn.Module):
    """Maxima of windows in planes of 16 by 24 numbers, whose positions are saved."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool, self.out = pool, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        images = torch.sin(x).view(-1, 2, 16, 1).expand(-1, -1, -1, 24) * torch.arange(1, 25, dtype=x.dtype)
        return self.out(self.pool(images).flatten(1)[:, :WIDTH])


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d((5, 7))])
def test_positions_of_maxima_are_saved_in_16_bits(monkeypatch: pytest.MonkeyPatch, pool: nn.Module) -> None:
    on_host = Cuts(monkeypatch, on_device=False)
    check_step(Pooled(pool), dynamic=False)
    torch.compiler.reset()
    on_device = Cuts(monkeypatch, on_device=True)
    check_step(Pooled(pool), dynamic=False)
    positions = ROWS * pool(torch.zeros(2, 16, 24)).numel()
    assert on_host.saved[0] - on_device.saved[-1] == positions * (8 - 2)
