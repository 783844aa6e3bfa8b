"""Check one operator of the database: run it in eager mode and compiled, on the same inputs and seed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core as entries
from torch.utils import _pytree as pytree

from polyfuse_bench.backends import compiled
from polyfuse_bench.child import first_line
from polyfuse_bench.devices import CPU
from polyfuse_bench.opdb.compare import difference
from polyfuse_bench.opdb.exclusions import EXCLUDED
from polyfuse_bench.opdb.status import AGREE, DRAWS, GOOD, MISMATCH, RAISES, REPORTED, SKIP, STATUSES
from polyfuse_bench.tensors import clone_tree

op_db = database.op_db


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


# The database seeds random operators itself, inside a context manager that no compiler can trace, so that
# nothing would be compiled. The checks seed every run, and the operators are called as they are.
database.wrapper_set_seed = _call
# At every sample it also searches the stack for a test of torch's, a quarter of the time that an item takes.
entries.extract_test_fn = common_utils.extract_test_fn = lambda: None

# What a run in higher precision computes in.
HIGHER = {torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32}


@dataclass(frozen=True)
class Item:
    """One entry of the database at one dtype."""

    index: int
    op: str
    dtype: str


@dataclass(frozen=True)
class Outcome:
    """What became of one item. `graphs` counts compiled graphs: none means that eager did the work; `checked`
    counts launches that ran beside the interpreter, and `unchecked` says why others did not."""

    op: str
    dtype: str
    status: str
    detail: str = ""
    strides: str = ""
    samples: int = 0
    graphs: int = 0
    fallbacks: tuple[str, ...] = ()
    seconds: float = 0.0
    checked: int = 0
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckSettings:
    """How each item is checked; with `kernels`, Polyfuse's kernels run beside the interpreter too."""

    backend: str
    samples: int = 2
    dynamic: bool = False
    gradients: bool = False
    device: str = CPU
    kernels: bool = False


@dataclass
class _Tally:
    """What the samples of one item add up to."""

    status: str = SKIP
    detail: str = ""
    strides: str = ""
    samples: int = 0
    graphs: int = 0
    fallbacks: list[str] = field(default_factory=list)
    checked: int = 0
    unchecked: list[str] = field(default_factory=list)

    def add(self, status: str, detail: str) -> None:
        if STATUSES.index(status) > STATUSES.index(self.status) or not self.samples:
            self.status, self.detail = status, detail
        self.samples += 1


def items(dtypes: Sequence[str], only: Sequence[str] = (), device: str = CPU) -> list[Item]:
    """Every entry that supports each dtype on the device, in the database's order."""
    wanted = [getattr(torch, name) for name in dtypes]
    return [
        Item(index, full_name(entry), str(dtype).removeprefix("torch."))
        for index, entry in enumerate(op_db)
        if not only or entry.name in only or full_name(entry) in only
        for dtype in wanted
        if dtype in entry.supported_dtypes(device)
    ]


def full_name(entry: Any) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def check(item: Item, settings: CheckSettings) -> Outcome:
    """Run one item's samples."""
    entry = op_db[item.index]
    if entry.name in EXCLUDED:
        return Outcome(item.op, item.dtype, SKIP, EXCLUDED[entry.name])
    began = time.perf_counter()
    dtype = getattr(torch, item.dtype)
    gradients = settings.gradients and entry.supports_autograd and dtype.is_floating_point
    tally = _Tally()
    torch.manual_seed(0)
    samples = entry.sample_inputs(settings.device, dtype, requires_grad=gradients)
    for sample in itertools.islice(samples, settings.samples):
        arguments = (sample.input, *sample.args), dict(sample.kwargs)
        _check_sample(entry.op, arguments, gradients, settings, tally)
        if tally.status not in GOOD:
            break
    return Outcome(
        op=item.op,
        dtype=item.dtype,
        status=tally.status,
        detail=tally.detail,
        strides=tally.strides,
        samples=tally.samples,
        graphs=tally.graphs,
        fallbacks=tuple(dict.fromkeys(tally.fallbacks)),
        seconds=round(time.perf_counter() - began, 2),
        checked=tally.checked,
        unchecked=tuple(dict.fromkeys(tally.unchecked)),
    )


def _check_sample(
    operation: Callable[..., Any], arguments: Any, gradients: bool, settings: CheckSettings, tally: _Tally
) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    try:
        expected = _run(function, arguments, gradients)
    except Exception as error:
        tally.add(SKIP, f"eager raises {_sentence(error)}")
        return
    torch.compiler.reset()
    counters.clear()
    options: dict[str, Any] = {"options": {"check": "first"}} if settings.kernels else {}
    candidate = compiled(function, settings.backend, dynamic=settings.dynamic, **options)
    try:
        actual = _run(candidate, arguments, gradients)
    except Exception as error:
        if _capture_raises(function, arguments, gradients, settings):
            tally.add(SKIP, f"torch's capture raises {_sentence(error)}")
        else:
            tally.add(RAISES, _sentence(error))
        return
    tally.graphs += counters["stats"].get("unique_graphs", 0)
    tally.fallbacks += _fallbacks(settings.backend)
    reported = _reported_kernels(tally) if settings.kernels else ""
    if reported:
        tally.add(REPORTED, reported)
        return
    found = difference(actual, expected, lambda: _run(function, _higher(arguments), gradients))
    tally.strides = tally.strides or found.strides
    if "values:" in found.problem and _random(function, arguments, gradients, expected):
        tally.add(DRAWS, "")
    else:
        tally.add(MISMATCH if found.problem else AGREE, found.problem)


def _capture_raises(
    function: Callable[..., Any], arguments: Any, gradients: bool, settings: CheckSettings
) -> bool:
    """Whether Dynamo fails by itself, with nothing behind it that compiles: no backend can help that."""
    torch.compiler.reset()
    try:
        _run(torch.compile(function, backend="eager", dynamic=settings.dynamic), arguments, gradients)
    except Exception:
        return True
    return False


def _random(function: Callable[..., Any], arguments: Any, gradients: bool, expected: Any) -> bool:
    """Whether eager's own result depends on the seed: a compiler may then draw other numbers."""
    other = _run(function, arguments, gradients, seed=1)
    return "values:" in difference(other, expected, lambda: None).problem


def _run(function: Callable[..., Any], arguments: Any, gradients: bool, seed: int = 0) -> Any:
    """The result on a fresh copy of the arguments, and the gradients of those that ask for one."""
    args, kwargs = clone_tree(arguments)
    torch.manual_seed(seed)
    if not gradients:
        with torch.no_grad():
            return function(*args, **kwargs)
    result = function(*args, **kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(result) if _differentiable(leaf)]
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _differentiable(leaf)]
    if not outputs or not inputs:
        return result
    cotangents = [_cotangent(output) for output in outputs]
    return result, torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    """A gradient to start from that is the same in every precision."""
    count = max(output.numel(), 1)
    ramp = torch.linspace(0.5, 1.5, count, dtype=torch.float64)[: output.numel()].reshape(output.shape)
    return ramp.to(output.device, output.dtype)


def _higher(arguments: Any) -> Any:
    """The arguments with every floating-point tensor, and every dtype asked for, one precision up."""

    def raised(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return HIGHER.get(leaf, leaf)
        if isinstance(leaf, torch.Tensor) and leaf.dtype in HIGHER:
            return leaf.detach().to(HIGHER[leaf.dtype]).requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(raised, arguments)


def _fallbacks(backend: str) -> list[str]:
    """Operators that Polyfuse left to eager kernels in the graphs compiled since the last call."""
    if backend.partition("@")[0] != "polyfuse":
        return []
    from polyfuse.compiler.reports.report import last_reports, reset_reports

    found = [f"{name}: {reason}" for report in last_reports() for name, reason in report.fallbacks]
    reset_reports()
    return found


def _reported_kernels(item: _Tally) -> str:
    """What the option `check` found since the last call."""
    from polyfuse.checking import tally

    found = tally.result()
    # kernels that other operators had too were looked at then
    tally.begin(forget=False)
    item.checked += found.launches
    item.unchecked += [f"{name}: {reason}" for name, reason in found.skipped.items()]
    return "; ".join(str(finding) for finding in found.findings)


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
