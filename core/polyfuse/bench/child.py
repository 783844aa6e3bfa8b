"""One engine in a process of its own: `python -m polyfuse.bench.child`, which reads lines of JSON.

Commands, each answered by one line: `load`, `compile`, `check`, `run`, `memory`. What the subject prints
goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from polyfuse.bench.engine import Engine
from polyfuse.bench.subject import Subject, load_subject
from polyfuse.torch_compat.tracing.pytree import flatten, map_tensors

_SEED = 1234
_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-6}
"""Of the largest value of a result, by its type: above it, an engine differs from eager mode."""


class Child:
    """A subject under one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._subject: Subject | None = None
        self._call: Callable[[], Any] = lambda: None
        self._training = False
        self._device = "cpu"

    def load(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make the subject; tells its name and its device."""
        torch.manual_seed(_SEED)
        self._training = asked["training"]
        subject = load_subject(
            asked["subject"], asked["arguments"], asked["sizes"], asked["device"], self._training
        )
        self._subject = subject
        leaves = flatten((subject.args, dict(subject.kwargs)))[0]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if tensors:
            self._device = tensors[0].device.type
        self._call = self._caller(self._engine.compiled(subject.function, asked["dynamic"]))
        return {"about": subject.about, "left_out": list(subject.left_out), "device": self._device}

    def compile(self) -> dict[str, Any]:
        """The first call, in seconds; it compiles."""
        began = time.perf_counter()
        self._call()
        self._wait()
        return {"seconds": time.perf_counter() - began}

    def check(self) -> dict[str, Any]:
        """How far the results are from eager mode's on equal inputs, as a part of the largest value of each;
        not where eager mode itself draws random numbers.
        """
        assert self._subject is not None
        eager = self._caller(self._subject.function)
        torch.manual_seed(_SEED)
        wanted = _floats(eager())
        torch.manual_seed(_SEED + 1)
        if any(not _equal(a, b) for a, b in zip(wanted, _floats(eager()), strict=True)):
            return {"compared": False, "why": "eager mode's own results differ from call to call"}
        torch.manual_seed(_SEED)
        found = _floats(self._call())
        if [x.shape for x in found] != [x.shape for x in wanted]:
            return {"compared": True, "error": float("inf"), "tolerance": 0.0, "ok": False}
        worst = max((_distance(a, b) for a, b in zip(found, wanted, strict=True)), default=(0.0, 1.0))
        return {"compared": True, "error": worst[0] * worst[1], "tolerance": worst[1], "ok": worst[0] <= 1}

    def run(self, calls: int) -> dict[str, Any]:
        """The seconds of so many calls, each waited for."""
        times = []
        for _ in range(calls):
            began = time.perf_counter()
            self._call()
            self._wait()
            times.append(time.perf_counter() - began)
        return {"seconds": times}

    def memory(self) -> dict[str, Any]:
        """Bytes at the peak of one call: allocated on a device, or held by the process on the CPU."""
        if self._device == "cpu":
            is_reset = _reset_peak()
            self._call()
            return {"bytes": _peak_bytes(), "what": "process" if is_reset else "process, compiling included"}
        module = torch.get_device_module(self._device)
        if not hasattr(module, "reset_peak_memory_stats"):
            return {"bytes": 0, "what": ""}  # torch asks no device that it does not know to count
        module.reset_peak_memory_stats()
        self._call()
        self._wait()
        return {"bytes": int(module.max_memory_allocated()), "what": "allocated on the device"}

    def _caller(self, function: Callable[..., Any]) -> Callable[[], Any]:
        subject = self._subject
        assert subject is not None

        def forward() -> Any:
            with torch.set_grad_enabled(subject.grad):
                return function(*subject.args, **subject.kwargs)

        def step() -> Any:
            out = forward()
            ends = [x for x in flatten(out)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            wanted = self._differentiable()
            if not ends or not wanted:
                return out
            return out, torch.autograd.grad([x.float().sum() for x in ends], wanted, allow_unused=True)

        return step if self._training else forward

    def _differentiable(self) -> list[torch.Tensor]:
        assert self._subject is not None
        function = self._subject.function
        leaves = flatten((self._subject.args, dict(self._subject.kwargs)))[0]
        given = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        own = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
        return [*given, *(p for p in own if p.requires_grad)]

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.get_device_module(self._device).synchronize()


def _floats(result: Any) -> list[torch.Tensor]:
    leaves = flatten(map_tensors(lambda x: x.detach().clone(), result))[0]
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or bool(torch.allclose(a.double(), b.double(), rtol=1e-5, equal_nan=True))


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float]:
    """The largest difference in tolerances, and the tolerance as a part of the largest value."""
    tolerance = _TOLERANCE.get(wanted.dtype, 0.0)
    if not wanted.numel() or torch.equal(found, wanted):
        return 0.0, tolerance or 1.0
    if not tolerance:
        return float("inf"), 1.0
    a, b = found.double(), wanted.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf"), tolerance
    scale = b[b.isfinite()].abs().max().item() if bool(b.isfinite().any()) else 1.0
    apart = (a - b).nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    return apart / (scale or 1.0) / tolerance, tolerance


def _reset_peak() -> bool:
    """Begin a new peak of this process's memory, where the system can do that."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def _peak_bytes() -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    """Answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the subject prints is no answer
    made = json.loads(sys.stdin.readline())
    child = Child(Engine(made["name"], made["compiler"], tuple(made["backends"]), made["mode"]))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = _answer(child, asked)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


def _answer(child: Child, asked: Mapping[str, Any]) -> dict[str, Any]:
    match asked["do"]:
        case "load":
            return child.load(asked)
        case "compile":
            return child.compile()
        case "check":
            return child.check()
        case "run":
            return child.run(asked["calls"])
        case _:
            return child.memory()


if __name__ == "__main__":
    sys.exit(main())
