"""One compiled function for thirty sizes from 1 to 8192, each beside what a static compilation for it takes.

Reported is the least CPU time of interleaved calls, with one thread: it depends little on what else the
machine does.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["MODES", "NETWORKS", "SIZES", "SIDES", "Prepared", "best_of", "measure", "prepare", "ratio"]

SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 32, 48, 64),
    *(96, 100, 127, 128, 200, 256, 300, 512, 777, 1000, 1024, 2048, 3000, 4096, 8192),
)
FIRST = 8
"""The size that is met first, marked as one that varies."""
MODES = ("default", "max-autotune")
SIDES = ("dynamic", "static", "eager")

Call = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Network:
    """A network, an input of a size for it, and the dimension that is the size."""

    make: Callable[[], nn.Module]
    input: Callable[[int], torch.Tensor]
    dim: int


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512)),
        nn.Linear(512, 64),
    )


def _cnn() -> nn.Module:
    def block(before: int, after: int) -> list[nn.Module]:
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 64), *head)


def _llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=8192,
        use_cache=False,
    )
    model = transformers.LlamaModel(config)

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids).last_hidden_state

    return Hidden()


NETWORKS: Mapping[str, Network] = {
    "mlp": Network(_mlp, lambda n: torch.randn(n, 128), 0),
    "cnn": Network(_cnn, lambda n: torch.randn(n, 3, 32, 32), 0),
    "llama": Network(_llama, lambda n: torch.randint(0, 256, (1, n)), 1),
}


@dataclass
class Prepared:
    """What is timed: for each size its input, and the calls by side; all calls were made twice."""

    calls: dict[int, tuple[torch.Tensor, Mapping[str, Call]]]
    graphs: int
    errors: dict[int, float]


def prepare(name: str, mode: str, sizes: Sequence[int] = SIZES) -> Prepared:
    """Compile a network for all sizes at once, and for each by itself.

    Args:
        name: of `NETWORKS`.
        mode: of `MODES`.
        sizes: of the dimension that varies.
    """
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    from polyfuse_bench.backends import POLYFUSE, resolved

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 4 * len(sizes)
    network = NETWORKS[name]
    model = network.make().eval()
    options = {"backend": resolved(POLYFUSE), **({} if mode == "default" else {"mode": mode})}
    varying = _function(model, "varying")
    dynamic = torch.compile(varying, **options)
    with torch.no_grad():
        first = network.input(FIRST)
        torch._dynamo.mark_dynamic(first, network.dim)
        dynamic(first)
        calls, errors = {}, {}
        for n in sizes:
            x = network.input(n)
            static = torch.compile(_function(model, f"fixed_{n}"), dynamic=False, **options)
            sides = dict(zip(SIDES, (dynamic, static, _function(model, "plain")), strict=True))
            for call in (dynamic, static):
                call(x)
            expected = sides["eager"](x)
            errors[n] = float((dynamic(x) - expected).norm() / expected.norm())
            static(x)
            calls[n] = x, sides
    return Prepared(calls, len(_debug_get_cache_entry_list(varying.__code__)), errors)


def _function(model: nn.Module, name: str) -> Call:
    """A function with code of its own that calls a model: what Dynamo remembers belongs to the code."""

    def call(x: torch.Tensor) -> Any:
        return model(x)

    code = call.__code__.replace(co_name=name)
    return types.FunctionType(code, globals(), name, None, call.__closure__)


def best_of(x: torch.Tensor, sides: Mapping[str, Call], seconds: float, least: int = 3) -> dict[str, float]:
    """The least CPU time of a call by each side, in seconds, and how many rounds there were."""
    names, rounds = list(sides), 0
    best = dict.fromkeys(names, float("inf"))
    began = time.perf_counter()
    with torch.no_grad():
        while rounds < least or time.perf_counter() - began < seconds:
            for name in names if rounds % 2 else reversed(names):
                before = time.thread_time_ns()
                sides[name](x)
                best[name] = min(best[name], (time.thread_time_ns() - before) / 1e9)
            rounds += 1
    return {**best, "rounds": rounds}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` and `task["mode"]`: `"calls"` by size, and how many graphs served them."""
    prepared = prepare(task["name"], task["mode"], task["sizes"])
    seconds = task["effort"]["warmup_seconds"] * 4
    timed = {n: best_of(x, sides, seconds) for n, (x, sides) in prepared.calls.items()}
    return row(task, prepared, timed)


def row(
    task: Mapping[str, Any], prepared: Prepared, timed: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """A row of the result file."""
    calls = {str(n): {**timed[n], "error": prepared.errors[n]} for n in prepared.calls}
    head = {key: task[key] for key in ("name", "mode")}
    return {**head, "graphs": prepared.graphs, "calls": calls, "failures": {}}


def ratio(call: Mapping[str, float], over: str = "static") -> float:
    """How many times as long as another side one graph for all sizes takes."""
    return call["dynamic"] / call[over]


def worst(calls: Mapping[str, Mapping[str, float]], over: str = "static") -> Iterator[tuple[str, float]]:
    """Sizes with their ratios, the largest first."""
    yield from sorted(((n, ratio(call, over)) for n, call in calls.items()), key=lambda pair: -pair[1])
