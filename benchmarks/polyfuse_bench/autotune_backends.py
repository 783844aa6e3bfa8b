"""Which backend wins the kernels of one function, when all that can generate them are timed, and how much
that gains over the order in which they are asked.

All rows run in one process: the trials themselves have one of their own. In a folder that stays, a second
run finds every kernel built and only times them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polyfuse_bench.backends import resolved
from polyfuse_bench.devices import CPU
from polyfuse_bench.kernels import KERNELS, runner

ON_DEVICES = ("triton", "halide")
"""Who is timed on devices, where the second one generates nothing unless it is named."""

OPTIONS = {"autotune_backends": True, "tune_kernels": True, "strict": True, "progress": "off"}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The trials of `task["name"]` at `task["size"]`, with kernels stored in `task["cache"]` if given."""
    case = KERNELS[task["name"]]
    device = task.get("device", CPU)
    torch.manual_seed(0)
    with torch.device(device):
        arguments = case.arguments(task["size"])
    with _folder(task.get("cache", "")) as folder:
        _forget(Path(folder))
        options = {**OPTIONS, "cache_dir": folder, **_named(task)}
        function = torch.compile(case.function, backend=resolved("polyfuse"), dynamic=False, options=options)
        with torch.set_grad_enabled(case.backward):
            runner(case, function, arguments)()
        trials = _trials(Path(folder), device, _named(task))
    return {"name": case.name, "size": task["size"], "trials": trials, "failures": {}}


def _named(task: Mapping[str, Any]) -> dict[str, Any]:
    """The option that names who takes part, if not all that serve a device unasked."""
    return {"backends": [*task["backends"], "interpreter"]} if task.get("backends") else {}


def _folder(cache: str) -> contextlib.AbstractContextManager[str]:
    return contextlib.nullcontext(cache) if cache else tempfile.TemporaryDirectory(prefix="polyfuse-bench-")


def _forget(folder: Path) -> None:
    """Drop what was timed, for this row or before it; kernels stay."""
    from polyfuse.cache.timings import TimingStore

    store = TimingStore(folder)
    for key, _ in list(store.entries()):
        store.forget(key)


def _trials(folder: Path, device: str, named: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Each timed kernel: milliseconds of every backend in its best configuration, and who is asked first."""
    from polyfuse.base.settings import Settings
    from polyfuse.cache.timings import TimingStore
    from polyfuse.plugin import PluginManager

    order = PluginManager(Settings.resolve(None, named)).order(torch.device(device).type)
    found = []
    for _, record in TimingStore(folder).entries():
        best: dict[str, float] = {}
        for trial in record.ranked:
            if trial.candidate.implementation in order:
                best.setdefault(trial.candidate.implementation, trial.milliseconds)
        if len(best) > 1:
            first = next(name for name in order if name in best)
            found.append({"kernel": record.about, "milliseconds": best, "first": first})
    return found


def gain(trial: Mapping[str, Any]) -> float:
    """How much faster the winner is than the backend that is asked first."""
    return float(trial["milliseconds"][trial["first"]] / min(trial["milliseconds"].values()))


def winner(trial: Mapping[str, Any]) -> str:
    """The fastest backend."""
    return str(min(trial["milliseconds"], key=lambda name: trial["milliseconds"][name]))
