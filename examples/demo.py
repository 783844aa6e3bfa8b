"""Compile small transformers with Polyfuse and show what became of them: `make demo`.

Models come from `transformers` with random weights, so that nothing is downloaded. Each runs twice: an
inference call, and a training step's forward and backward. The tables say how the compiler fused each
graph, and how the compiled call compares with eager mode.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

BATCH, SEQUENCE, VOCABULARY = 1, 128, 4096


@dataclass(frozen=True)
class Work:
    """Something to run eagerly and compiled; `calls(f)` makes the call to time from a model's callable."""

    name: str
    title: str
    model: nn.Module
    calls: Callable[[Callable[..., Any]], Callable[[], list[torch.Tensor]]]
    gradients: bool


@dataclass(frozen=True)
class Result:
    """What one workload showed."""

    work: Work
    reports: tuple[Any, ...]
    compile_seconds: float
    eager_milliseconds: float
    compiled_milliseconds: float
    speed_ups: tuple[float, ...]
    largest_error: float


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=2,
            num_attention_heads=12,
            num_key_value_heads=4,
            max_position_embeddings=SEQUENCE,
            use_cache=False,
        )
    )


MODELS = {"bert": bert, "llama": llama}


def inference(name: str) -> Work:
    """One forward call without gradients."""
    model = MODELS[name]().eval().requires_grad_(False)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    return Work(name, f"{name} inference", model, lambda run: lambda: [run(input_ids=tokens).logits], False)


def training(name: str) -> Work:
    """Forward, cross entropy and backward: the result is the loss and the gradient of every parameter."""
    model = MODELS[name]().train()
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    parameters = list(model.parameters())

    def calls(run: Callable[..., Any]) -> Callable[[], list[torch.Tensor]]:
        def step() -> list[torch.Tensor]:
            loss = run(input_ids=tokens, labels=tokens).loss
            return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)]

        return step

    return Work(name, f"{name} training", model, calls, True)


def measure(work: Work, backend: str, rounds: int) -> Result:
    """Compile, compare with eager, and time both in turns, each first equally often."""
    torch.compiler.reset()
    _forget_reports(backend)
    eager = work.calls(work.model)
    with torch.set_grad_enabled(work.gradients):
        expected = eager()
        compiled = work.calls(torch.compile(work.model, backend=_resolved(backend), dynamic=False))
        began = time.perf_counter()
        actual = compiled()
        seconds = time.perf_counter() - began
        reports = _reports(backend)
        times: dict[str, list[float]] = {"eager": [], "compiled": []}
        calls = (("eager", eager), ("compiled", compiled))
        for _, call in calls:
            call()  # what is done once is not timed
        for turn in range(rounds):
            for name, call in calls if turn % 2 == 0 else reversed(calls):
                began = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - began) * 1e3)
    return Result(
        work=work,
        reports=reports,
        compile_seconds=seconds,
        eager_milliseconds=statistics.median(times["eager"]),
        compiled_milliseconds=statistics.median(times["compiled"]),
        # by neighbours: what else the machine does slows both
        speed_ups=tuple(e / c for e, c in zip(times["eager"], times["compiled"], strict=True)),
        largest_error=_largest_error(actual, expected),
    )


def _largest_error(actual: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None]) -> float:
    """The largest difference, as a part of the largest value in all results of the same kind."""
    pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if a is not None and e is not None]
    scale = max(e.abs().max().item() for _, e in pairs)
    return max((a - e).abs().max().item() for a, e in pairs) / scale


def _resolved(backend: str) -> str | Callable[..., Any]:
    """The backend's name, or Polyfuse's entry itself where the checkout is only on the path."""
    if backend != "polyfuse" or backend in torch.compiler.list_backends(exclude_tags=()):
        return backend
    from polyfuse.backend import polyfuse

    return polyfuse


def _reports(backend: str) -> tuple[Any, ...]:
    """What the compiler says of the graphs it has just compiled: forward, and backward if there is one."""
    if backend != "polyfuse":
        return ()
    from polyfuse.compiler.reports.report import last_reports

    return tuple(last_reports())


def _forget_reports(backend: str) -> None:
    if backend == "polyfuse":
        from polyfuse.compiler.reports.report import reset_reports

        reset_reports()


def fusion_table(results: Sequence[Result]) -> Table:
    table = Table(title="What the compiler made of each graph", title_justify="left")
    table.add_column("graph", no_wrap=True)
    for heading in ("ops", "kernels", "library", "eager", "MiB unfused", "MiB fused"):
        table.add_column(heading, justify="right")
    for result in results:
        for report in result.reports:
            table.add_row(
                f"{result.work.name} {report.kind}",
                str(report.aten_ops),
                str(report.kernels),
                str(report.extern_calls - len(report.fallbacks)),
                str(len(report.fallbacks)),
                f"{report.bytes_before / 2**20:.1f}",
                f"{report.bytes_after / 2**20:.1f}",
            )
    table.caption = "library: matmuls of torch; eager: operators not lowered"
    return table


def speed_table(results: Sequence[Result], backend: str) -> Table:
    table = Table(title="Against eager mode", title_justify="left")
    table.add_column("work", no_wrap=True)
    for heading in ("compile s", "eager ms", f"{backend} ms", "speed-up", "half within", "error"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.work.title,
            f"{result.compile_seconds:.2f}",
            f"{result.eager_milliseconds:.1f}",
            f"{result.compiled_milliseconds:.1f}",
            f"{statistics.median(result.speed_ups):.2f} x",
            "{:.2f}..{:.2f}".format(*_middle(result.speed_ups)),
            f"{result.largest_error:.1e}",
        )
    return table


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Between which bounds the middle half lies."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return low, high


def doubts(results: Sequence[Result], load: float) -> list[str]:
    """Why the times may mean little.

    Args:
        load: of the machine before anything was measured.
    """
    found = []
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if load > 0.3 * cpus:
        found.append(f"the machine was busy (load {load:.1f} on {cpus} CPUs): times are too long, and vary")
    for result in results:
        low, high = _middle(result.speed_ups)
        if high > 1.2 * low:
            found.append(
                f"the speed-up of {result.work.title} varies from turn to turn: {low:.2f} to {high:.2f}"
            )
    return found


def print_decisions(console: Console, result: Result) -> None:
    """Every decision of the compiler, one a line."""
    for report in result.reports:
        console.print(f"\n{result.work.name} {report.kind}:")
        for decision in report.decisions:
            line = f"  {decision.kind} {decision.first} and {decision.second}: {decision.reason}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="polyfuse", help="any backend of torch.compile")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=["bert"])
    parser.add_argument("--rounds", type=int, default=40, help="timed calls of each")
    parser.add_argument("--decisions", action="store_true", help="print what was fused, and why not")
    options = parser.parse_args()

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    torch.manual_seed(0)
    console = Console()
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, backend {options.backend}\n"
    )
    results = []
    for name in options.models:
        for make in (inference, training):
            work = make(name)
            with console.status(f"compiling {work.title}"):
                results.append(measure(work, options.backend, options.rounds))
    if any(result.reports for result in results):
        console.print(fusion_table(results))
    console.print(speed_table(results, options.backend))
    for text in doubts(results, load):
        console.print(f"warning: {text}", style="yellow", highlight=False)
    if options.decisions:
        for result in results:
            print_decisions(console, result)


if __name__ == "__main__":
    main()
