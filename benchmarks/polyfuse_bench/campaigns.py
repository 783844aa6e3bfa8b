"""Lists of measurements: each entry of a campaign is a call that answers one row of a result file."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from polyfuse_bench.ahead import Ahead
from polyfuse_bench.backends import DEFAULT_BACKENDS, DYNAMO, EAGER, INDUCTOR, empty_caches
from polyfuse_bench.child import TASKS, ChildFailed, first_line, run_child
from polyfuse_bench.devices import CPU
from polyfuse_bench.starts import start_rows
from polyfuse_bench.timing import DEFAULT_EFFORT, Effort

Row = dict[str, Any]
Plan = list[Callable[[], Row]]

DEFAULT_MODES = ("forward", "train")

# What compile time is measured on beside the models: one small function.
ONE_KERNEL = "kernel:layer_norm"

# What building one kernel is measured on, after another one, and by whom: Dynamo's share is in all.
BUILT = ("kernel:softmax", "kernel:bias_gelu_residual", "kernel:layer_norm", "kernel:transcendental")
BUILT_AFTER = "kernel:chain"
BUILDERS = (DYNAMO, INDUCTOR, "polyfuse@cpp", "polyfuse@halide")

# The part of a limited time in which rows are compiled ahead of timing.
_AHEAD = 0.7

# With these the C library maps each larger block separately and gives it back when freed, so that resident
# memory follows what is alive.
ALLOCATOR_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
}


@dataclasses.dataclass(frozen=True)
class Selection:
    """What the command line asks for; `known` are names and types of rows that are measured already."""

    backends: tuple[str, ...]
    only: tuple[str, ...] = ()
    modes: tuple[str, ...] = DEFAULT_MODES
    sizes: tuple[str, ...] = ()
    model_size: str = "real"
    batch: int | None = None
    seq: int | None = None
    dtype: str = "float32"
    device: str = CPU
    repeats: int = 3
    together: int = 1
    ahead: int = 0
    limit: float = 0.0
    cache: str = ""
    known: frozenset[tuple[str, str]] = frozenset()
    effort: Effort = DEFAULT_EFFORT

    def model_task(self, kind: str, name: str, mode: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "name": name,
            "mode": mode,
            "size": self.model_size,
            "batch": self.batch,
            "seq": self.seq,
            "dtype": self.dtype,
            "device": self.device,
        }

    @property
    def compilers(self) -> tuple[str, ...]:
        return tuple(name for name in self.backends if name != EAGER)


def kernels(selection: Selection) -> Plan:
    from polyfuse_bench.kernels import HUGE, KERNELS, SIZES

    effort = dataclasses.asdict(selection.effort)
    tasks = [
        {
            "kind": "kernel",
            "name": name,
            "size": size,
            "backends": selection.backends,
            "effort": effort,
            "device": selection.device,
            "apart": selection.together > 1,
        }
        for name in _chosen(KERNELS, selection.only, "kernel")
        for size in selection.sizes or (SIZES if selection.device == CPU else (HUGE,))
    ]
    return [functools.partial(_measured_row, task) for task in tasks]


def blocks(selection: Selection) -> Plan:
    from polyfuse_bench.blocks import BLOCKS, CANDIDATES, rows_of

    names = _chosen(BLOCKS, selection.only, "block")
    tasks = {task["name"]: task for task in _selecting_tasks("blocks", names, CANDIDATES, selection)}
    return [
        functools.partial(_cold_row, {**tasks[name], "mode": mode})
        for name, mode in rows_of(names, selection.modes, selection.dtype)
    ]


def models(selection: Selection) -> Plan:
    from polyfuse_bench.models import FAMILIES, MAIN_FAMILIES

    effort = dataclasses.asdict(selection.effort)
    tasks = [
        {
            **selection.model_task("model", name, mode),
            "backends": selection.backends,
            "effort": effort,
            "apart": selection.together > 1,
        }
        for name in _chosen(FAMILIES, selection.only or MAIN_FAMILIES, "model family")
        for mode in selection.modes
    ]
    return [functools.partial(_measured_row, task) for task in tasks]


def linear(selection: Selection) -> Plan:
    from polyfuse_bench.linear import CANDIDATES, CASES

    names = _chosen(CASES, selection.only, "linear layer")
    return _selecting("linear", names, CANDIDATES, selection)


def weights(selection: Selection) -> Plan:
    from polyfuse_bench.weights import CANDIDATES, CASES

    return _selecting("weights", _chosen(CASES, selection.only, "weight"), CANDIDATES, selection)


def flex(selection: Selection) -> Plan:
    from polyfuse_bench.flex import CANDIDATES, CASES

    return _selecting("flex", _chosen(CASES, selection.only, "attention"), CANDIDATES, selection)


def decode(selection: Selection) -> Plan:
    from polyfuse_bench.decode import CANDIDATES, CASES, ON_CPU, cases_of

    names = _chosen(CASES, selection.only or cases_of(selection.device), "decoder")
    return _selecting("decode", names, ON_CPU if selection.device == CPU else CANDIDATES, selection)


def host(selection: Selection) -> Plan:
    from polyfuse_bench.host import CANDIDATES, CASES

    return _selecting("host", _chosen(CASES, selection.only, "graph"), CANDIDATES, selection)


def fusion_rules(selection: Selection) -> Plan:
    from polyfuse_bench.fusion_rules import CANDIDATES, CASES

    kind = torch.device(selection.device).type
    here = [name for name, case in CASES.items() if case.device == kind]
    return _selecting("fusion_rules", _chosen(here, selection.only, "rule"), CANDIDATES, selection)


def engines(selection: Selection) -> Plan:
    from polyfuse_bench.engines import CANDIDATES, NETWORKS, REST_SECONDS

    effort = dataclasses.replace(selection.effort, rest_seconds=REST_SECONDS)
    selection = dataclasses.replace(selection, effort=effort)
    names = _chosen(NETWORKS, selection.only, "network")
    names = [name for name in names if (name, selection.dtype) not in selection.known]
    tasks = _selecting_tasks("engines", names, CANDIDATES, selection)
    shape = {"size": selection.model_size, "batch": selection.batch, "seq": selection.seq}
    return [functools.partial(_measured_row, {**task, **shape}) for task in tasks]


def gemm(selection: Selection) -> Plan:
    from polyfuse_bench.gemm import CANDIDATES
    from polyfuse_bench.gemm_cases import CASES, cases_of

    if selection.device == CPU:
        raise SystemExit("matmuls are timed on an accelerator, by its clock: name one with --device")
    names = _chosen(CASES, selection.only or cases_of(selection.dtype), "matmul")
    tasks = _selecting_tasks("gemm", names, CANDIDATES, selection)
    tasks = [task for task in tasks if (task["name"], task["dtype"]) not in selection.known]
    if not selection.ahead:
        return [functools.partial(_measured_row, task) for task in tasks]
    folder = Path(tempfile.mkdtemp(prefix="polyfuse-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    seconds = _AHEAD * selection.limit or threading.TIMEOUT_MAX
    ahead = Ahead(tasks, selection.ahead, seconds, folder)
    atexit.register(ahead.close)
    return [functools.partial(_row_ahead, ahead, task) for task in tasks if task["name"] in ahead.ready]


def _row_ahead(ahead: Ahead, task: Mapping[str, Any]) -> Row:
    try:
        return ahead.measure(task["name"])
    except ChildFailed as failure:
        return _failed(task, str(failure))


def _selecting(kind: str, names: Sequence[str], candidates: Sequence[str], selection: Selection) -> Plan:
    tasks = _selecting_tasks(kind, names, candidates, selection)
    return [functools.partial(_measured_row, task) for task in tasks]


def _selecting_tasks(
    kind: str, names: Sequence[str], candidates: Sequence[str], selection: Selection
) -> list[dict[str, Any]]:
    """Rows in which compilers choose among implementations, unless the command line names candidates."""
    chosen = selection.backends if selection.backends != DEFAULT_BACKENDS else candidates
    return [
        {
            "kind": kind,
            "name": name,
            "backends": chosen,
            "effort": dataclasses.asdict(selection.effort),
            "dtype": selection.dtype,
            "device": selection.device,
        }
        for name in names
    ]


def tilings(selection: Selection) -> Plan:
    from polyfuse_bench.gemm_cases import CASES
    from polyfuse_bench.tilings import Search

    if selection.device == CPU:
        raise SystemExit("tilings are those of GPU kernels: name a device with --device")
    dtype = "bfloat16" if selection.dtype == "float32" else selection.dtype
    names = _chosen([name for name, case in CASES.items() if case.then == "none"], selection.only, "matmul")
    names = [name for name in names if (name, dtype) not in selection.known]
    folder = Path(tempfile.mkdtemp(prefix="polyfuse-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    search = Search(names, dtype, selection.device, folder)
    atexit.register(search.close)
    return [functools.partial(search.measure, name) for name in search.names]


def compile_time(selection: Selection) -> Plan:
    tasks = [selection.model_task("compile", name, mode) for name, mode in _targets(selection)]
    if selection.together < 2:
        return [functools.partial(_compile_row, selection, task) for task in tasks]
    figures = start_rows(tasks, selection.compilers, selection.repeats, selection.together)
    return [lambda task=task: {**_row_head(task), **next(figures)} for task in tasks]


def build(selection: Selection) -> Plan:
    if selection.backends == DEFAULT_BACKENDS:
        selection = dataclasses.replace(selection, backends=BUILDERS)
    tasks = [
        {**selection.model_task("compile", name, "forward"), "after": BUILT_AFTER}
        for name in selection.only or BUILT
    ]
    return [functools.partial(_compile_row, selection, task) for task in tasks]


def tuning(selection: Selection) -> Plan:
    from polyfuse_bench.models import FAMILIES
    from polyfuse_bench.tuning import CANDIDATES, TARGETS

    names = _chosen(FAMILIES, selection.only or TARGETS, "model family")
    if selection.backends == DEFAULT_BACKENDS:
        selection = dataclasses.replace(selection, backends=CANDIDATES)
    tasks = [selection.model_task("compile", name, "forward") for name in names]
    return [functools.partial(_compile_row, selection, task) for task in tasks]


def serving(selection: Selection) -> Plan:
    from polyfuse_bench.serving import CANDIDATES, NETWORKS, serving_row

    chosen = selection.backends if selection.backends != DEFAULT_BACKENDS else CANDIDATES
    tasks = [
        {"kind": "serving", "name": name, "size": selection.model_size}
        for name in _chosen(NETWORKS, selection.only, "network")
    ]
    return [
        functools.partial(serving_row, task, chosen, selection.repeats, selection.cache) for task in tasks
    ]


def callers(selection: Selection) -> Plan:
    from polyfuse_bench.callers import CALLERS, CANDIDATES, NETWORKS, SECONDS

    chosen = selection.backends if selection.backends != DEFAULT_BACKENDS else CANDIDATES
    shared = {"kind": "callers", "size": selection.model_size, "backends": chosen, "callers": CALLERS}
    names = _chosen(NETWORKS, selection.only, "network")
    effort = {"rounds": selection.effort.rounds, "seconds": SECONDS}
    return [functools.partial(_measured_row, {**shared, **effort, "name": name}) for name in names]


def any_size(selection: Selection) -> Plan:
    from polyfuse_bench.any_size import MODES, NETWORKS, SIZES

    modes = MODES if selection.modes == DEFAULT_MODES else selection.modes
    shared = {
        "kind": "any_size",
        "sizes": [int(size) for size in selection.sizes] or SIZES,
        "effort": dataclasses.asdict(selection.effort),
    }
    return [
        functools.partial(_measured_row, {**shared, "name": name, "mode": mode})
        for name in _chosen(NETWORKS, selection.only, "network")
        for mode in modes
    ]


def layers(selection: Selection) -> Plan:
    from polyfuse_bench.layers import CANDIDATES, COUNTS, NETWORKS, layers_row

    chosen = selection.backends if selection.backends != DEFAULT_BACKENDS else CANDIDATES
    counts = [int(size) for size in selection.sizes] or COUNTS
    tasks = [
        {"kind": "layers", "name": name, "mode": mode, "counts": counts}
        for name in _chosen(NETWORKS, selection.only, "network")
        for mode in selection.modes
    ]
    return [functools.partial(layers_row, task, chosen, selection.repeats) for task in tasks]


def autotune_backends(selection: Selection) -> Plan:
    from polyfuse_bench.autotune_backends import ON_DEVICES
    from polyfuse_bench.kernels import HUGE, KERNELS

    size = selection.sizes[0] if selection.sizes else "large" if selection.device == CPU else HUGE
    names = _chosen(KERNELS, selection.only, "kernel")
    backends = () if selection.device == CPU else ON_DEVICES
    if selection.backends != DEFAULT_BACKENDS:
        backends = selection.backends
    shared = {"size": size, "device": selection.device, "cache": selection.cache, "backends": backends}
    tasks = [{"kind": "autotune_backends", "name": name, **shared} for name in names]
    return [functools.partial(_own_row, task) for task in tasks]


def memory(selection: Selection) -> Plan:
    return [
        functools.partial(_memory_row, selection, selection.model_task("memory", name, mode))
        for name, mode in _targets(selection)
    ]


CAMPAIGNS: dict[str, Callable[[Selection], Plan]] = {
    "kernels": kernels,
    "blocks": blocks,
    "models": models,
    "linear": linear,
    "weights": weights,
    "decode": decode,
    "flex": flex,
    "host": host,
    "fusion_rules": fusion_rules,
    "engines": engines,
    "gemm": gemm,
    "tilings": tilings,
    "compile": compile_time,
    "build": build,
    "tuning": tuning,
    "serving": serving,
    "callers": callers,
    "layers": layers,
    "any_size": any_size,
    "autotune_backends": autotune_backends,
    "memory": memory,
}


def _targets(selection: Selection) -> list[tuple[str, str]]:
    """One kernel and one model of each architecture, unless the command line names others."""
    from polyfuse_bench.models import FAMILIES, MAIN_FAMILIES

    only = selection.only or (ONE_KERNEL, *MAIN_FAMILIES)
    names = _chosen({ONE_KERNEL: None, **FAMILIES}, only, "target")
    return [
        (name, mode)
        for name in names
        for mode in (("forward",) if name.startswith("kernel:") else selection.modes)
    ]


def _chosen(known: Mapping[str, Any], only: Sequence[str], what: str) -> list[str]:
    unknown = [name for name in only if name not in known and not name.startswith("kernel:")]
    if unknown:
        raise SystemExit(f"unknown {what} {', '.join(unknown)}: choose from {', '.join(known)}")
    return list(only or known)


def _measured_row(task: Mapping[str, Any]) -> Row:
    if task.get("device", CPU) != CPU and not task.get("apart"):
        return _own_row(task)
    try:
        return dict(run_child(task))
    except ChildFailed as failure:
        return _failed(task, str(failure))


def _cold_row(task: Mapping[str, Any]) -> Row:
    """A row whose compilers start with empty caches."""
    with empty_caches() as environment:
        try:
            return dict(run_child(task, environment=environment))
        except ChildFailed as failure:
            return _failed(task, str(failure))


def _own_row(task: Mapping[str, Any]) -> Row:
    """In this process: opening an accelerator, or loading torch, for each row would take too long."""
    torch.compiler.reset()
    try:
        return dict(importlib.import_module(TASKS[task["kind"]]).measure(task))
    except Exception as error:
        return _failed(task, f"{type(error).__name__}: {first_line(error)}")


def _failed(task: Mapping[str, Any], failure: str) -> Row:
    empty = {"trials": []} if task["kind"] == "autotune_backends" else {"timings": [], "errors": {}}
    return {**task, **empty, "failures": {"all": failure}}


def _compile_row(selection: Selection, task: Mapping[str, Any]) -> Row:
    """Cold starts, the backends alternating, each followed by a warm start from the caches it filled."""
    (figures,) = start_rows([task], selection.compilers, selection.repeats)
    return {**_row_head(task), **figures}


def _memory_row(selection: Selection, task: Mapping[str, Any]) -> Row:
    """One child process for each backend, with a C library that returns freed memory at once."""
    peaks: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name in selection.backends:
        with empty_caches() as environment:
            try:
                peaks[name] = run_child(
                    {**task, "backend": name}, environment={**environment, **ALLOCATOR_ENVIRONMENT}
                )
            except ChildFailed as failure:
                failures[name] = str(failure)
    return {**_row_head(task), "peaks": peaks, "failures": failures}


def _row_head(task: Mapping[str, Any]) -> Row:
    return {key: task[key] for key in ("name", "mode", "size", "batch", "seq", "dtype", "device")}
