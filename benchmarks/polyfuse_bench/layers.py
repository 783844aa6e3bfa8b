"""What compiling a network of many equal layers costs beside one of four: the first call, in a fresh process
with empty caches.

Reported is the CPU time of the process and of the compilers that it starts, with one thread: it depends
little on what else the machine does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["CANDIDATES", "COUNTS", "FEW", "MODES", "NETWORKS", "layers_row", "measure", "median"]

FEW = 4
COUNTS = (FEW, 24, 32)
MODES = ("train", "forward")
CANDIDATES = ("dynamo", "aot_eager", "polyfuse")
"""Who is measured: `dynamo` and `aot_eager` are what torch takes by itself, whatever the backend."""

_WIDTH, _HEADS, _TOKENS, _WORDS = 256, 4, 32, 128


def _encoder(count: int) -> Any:
    from torch import nn

    layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, count, enable_nested_tensor=False)


def _bert(count: int) -> Any:
    import transformers

    sizes = {"hidden_size": _WIDTH, "intermediate_size": 4 * _WIDTH, "num_hidden_layers": count}
    config = transformers.BertConfig(
        **sizes,
        num_attention_heads=_HEADS,
        vocab_size=_WORDS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertModel(config)


def _llama(count: int) -> Any:
    import transformers

    sizes = {"hidden_size": _WIDTH, "intermediate_size": 3 * _WIDTH, "num_hidden_layers": count}
    config = transformers.LlamaConfig(
        **sizes,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS // 2,
        vocab_size=_WORDS,
        use_cache=False,
    )
    return transformers.LlamaModel(config)


NETWORKS: Mapping[str, Callable[[int], Any]] = {"encoder": _encoder, "bert": _bert, "llama": _llama}


def measure(task: Mapping[str, Any]) -> dict[str, float]:
    """CPU seconds of the first step and of the second, in this process; modules are imported before."""
    from importlib import import_module

    import torch

    from polyfuse_bench.backends import compiled
    from polyfuse_bench.serving import cpu_seconds

    for module in ("torch._dynamo", "torch._functorch.aot_autograd", "polyfuse.backend"):
        import_module(module)
    torch.manual_seed(0)
    model = NETWORKS[task["name"]](task["layers"])
    train = task["mode"] == "train"
    model.train(train)
    if task["name"] == "encoder":
        given = torch.randn(2, _TOKENS, _WIDTH)
    else:
        given = torch.randint(0, _WORDS, (2, _TOKENS))

    def step(call: Any) -> None:
        with torch.set_grad_enabled(train):
            found = call(given)
            found = getattr(found, "last_hidden_state", found)
            if train:
                found.square().mean().backward()

    step(model)
    call = compiled(model, task["backend"])
    began = cpu_seconds()
    step(call)
    first = cpu_seconds()
    step(call)
    return {"first": first - began, "second": cpu_seconds() - first}


def layers_row(task: Mapping[str, Any], backends: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds of the first steps of one network, by backend and number of layers, and what failed.

    Numbers of layers and candidates alternate; each process has empty caches of its own.
    """
    from polyfuse_bench.backends import empty_caches
    from polyfuse_bench.child import ChildFailed, run_child
    from polyfuse_bench.compile_time import keep_byte_code

    keep_byte_code()
    seconds: dict[str, dict[str, list[float]]] = {}
    failures: dict[str, str] = {}
    for _ in range(repeats):
        for backend in backends:
            for count in task["counts"]:
                if backend in failures:
                    continue
                with empty_caches() as environment:
                    own = {**task, "backend": backend, "layers": count}
                    try:
                        answer = run_child(own, environment={**environment, "OMP_NUM_THREADS": "1"})
                    except ChildFailed as failure:
                        failures[backend] = str(failure)
                        continue
                found = seconds.setdefault(backend, {}).setdefault(str(count), [])
                found.append(answer["first"])
    return {"name": task["name"], "mode": task["mode"], "seconds": seconds, "failures": failures}


def median(row: Mapping[str, Any], backend: str, count: int) -> float | None:
    """The median over processes of the seconds of the first step, where it was measured."""
    found = row["seconds"].get(backend, {}).get(str(count))
    return statistics.median(found) if found else None
