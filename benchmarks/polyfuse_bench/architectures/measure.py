"""One architecture: the truth in double precision, eager, eager perturbed, and the compilers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from polyfuse_bench.architectures import catalogue
from polyfuse_bench.architectures.built import (
    Built,
    Entry,
    NotBuildable,
    copied,
    differentiable,
    tensors_of,
)
from polyfuse_bench.architectures.outcome import (
    AGREE,
    EAGER_FAILS,
    FELL_BACK,
    HOPELESS,
    JUDGED,
    NO_TRUTH,
    NOT_BUILDABLE,
    PERTURBATION,
    RAISES,
    UNSTEADY,
    WRONG,
    Errors,
    error,
    scales,
    worst,
)
from polyfuse_bench.architectures.reports import Compiled, compiled_graphs, listen
from polyfuse_bench.backends import INDUCTOR, POLYFUSE, compiled
from polyfuse_bench.child import first_line
from polyfuse_bench.devices import moved

SEEDS = 3
"""A disagreement counts once it is found with this many different sets of weights and inputs."""

Tensors = dict[str, torch.Tensor]


@dataclass
class Row:
    """What became of one architecture in one dtype.

    Attributes:
        error, own, perturbed, allowed: of the tensor that comes nearest to what is allowed, or is beyond.
        tensor: its name.
        tensors, judged: how many there are, and how many of them could be judged.
        outputs, own_outputs: the largest errors among the outputs, the compiler's and eager's.
        inductor: Inductor's error for its own nearest tensor, as a part of what is allowed; None: not asked.
    """

    library: str
    name: str
    family: str
    dtype: str
    outcome: str
    detail: str = ""
    error: float | None = None
    own: float | None = None
    perturbed: float | None = None
    allowed: float | None = None
    tensor: str = ""
    outputs: float | None = None
    own_outputs: float | None = None
    tensors: int = 0
    judged: int = 0
    parameters: int = 0
    graphs: int = 0
    breaks: int = 0
    kernels: int = 0
    calls: int = 0
    fallbacks: tuple[str, ...] = ()
    inductor: float | None = None
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    device: str = "cpu"
    inductor: bool = False


def measure(entry: Entry, settings: Settings, say: Callable[[dict[str, Any]], None]) -> None:
    """Say one row for each dtype."""
    model_of: dict[int, Built] = {}
    not_built = ""
    for dtype in settings.dtypes:
        row = Row(entry.library, entry.name, entry.family, dtype, AGREE)
        began = time.perf_counter()
        try:
            if not not_built:
                _measure_dtype(entry, dtype, settings, model_of, row)
        except NotBuildable as reason:
            not_built = str(reason)
        if not_built:
            row.outcome, row.detail = NOT_BUILDABLE, not_built
        row.seconds = round(time.perf_counter() - began, 2)
        say(asdict(row))


def _measure_dtype(
    entry: Entry, dtype: str, settings: Settings, model_of: dict[int, Built], row: Row
) -> None:
    problem = ""
    for seed in range(SEEDS):
        if seed not in model_of:
            began = time.perf_counter()
            model_of[seed] = _exact(catalogue.build(entry, seed), settings.device)
            row.parts["build"] = round(time.perf_counter() - began, 2)
        built = model_of[seed]
        row.parameters = sum(parameter.numel() for parameter in built.model.parameters())
        found = _judge(built, dtype, settings, row, seed)
        if found is None:
            return
        if not any(entry.wrong(dtype) for entry in found):
            if problem:
                row.outcome, row.detail = UNSTEADY, f"with other weights: {problem}"
            return
        problem = row.detail = _problem(found, dtype)
        if _draws(built, dtype):
            row.outcome, row.detail = NO_TRUTH, "it draws random numbers"
            return
    row.outcome = WRONG


def _draws(built: Built, dtype: str) -> bool:
    """Whether eager's outputs depend on the state of the generator: a compiler may draw other numbers."""
    low = getattr(torch, dtype)
    first, other = (_run(_in(built, low), built.inputs, low, seed=seed) for seed in (0, 1))
    return any(
        not torch.equal(first[name].nan_to_num(), other[name].nan_to_num())
        for name in first
        if name.startswith("out")
    )


def _problem(found: list[Errors], dtype: str) -> str:
    bad = [entry for entry in found if entry.wrong(dtype)]
    least = min(bad, key=lambda entry: found.index(entry))
    limit = least.allowed(dtype)
    found_there = f"{least.name}: {least.found:.1e} where {limit:.1e} is allowed"
    return f"{len(bad)} of {len(found)} tensors, first {found_there}"


def _judge(built: Built, dtype: str, settings: Settings, row: Row, seed: int) -> list[Errors] | None:
    """Errors of every tensor; None where the row is finished without."""
    began = time.perf_counter()
    try:
        truth = _run(_in(built, torch.float64), built.inputs, torch.float64, wide=True)
        truth = {name: tensor.to(torch.float64) for name, tensor in truth.items()}
        low = getattr(torch, dtype)
        eager = _run(_in(built, low), built.inputs, low)
        perturbed = _run(_perturbed(_in(built, low), PERTURBATION[dtype], seed), built.inputs, low)
    except Exception as problem:
        row.outcome, row.detail = EAGER_FAILS, _sentence(problem)
        return None
    row.parts["eager"] = round(row.parts.get("eager", 0.0) + time.perf_counter() - began, 2)
    scale = scales(truth, dtype)
    if list(truth) != list(eager) or any(truth[name].shape != eager[name].shape for name in truth):
        row.outcome, row.detail = NO_TRUTH, "in double precision there are other outputs or gradients"
        return None
    own = {name: error(eager[name], truth[name], eager[name], scale[name]) for name in truth}
    other = {
        name: error(perturbed[name], truth[name], eager[name], scale[name])
        for name in truth
        if name in perturbed
    }
    row.tensors, row.judged = len(own), sum(max(own[name], other.get(name, 0.0)) <= HOPELESS for name in own)
    if row.judged < JUDGED * row.tensors or not any(
        name.startswith("out") and own[name] <= HOPELESS for name in own
    ):
        row.outcome, row.detail = (
            NO_TRUTH,
            f"of {row.tensors} tensors eager errs by half of the norm in {row.tensors - row.judged}",
        )
        return None
    actual = _compiled_run(built, low, POLYFUSE, row, seed)
    if actual is None:
        return None
    if list(actual) != list(eager):
        row.outcome, row.detail = WRONG, "other outputs or gradients than eager's"
        return None
    found = [
        Errors(
            name,
            own[name],
            other.get(name, own[name]),
            error(actual[name], truth[name], eager[name], scale[name]),
        )
        for name in truth
    ]
    nearest = worst(found, dtype)
    of_outputs = [entry for entry in found if entry.name.startswith("out") and entry.judged]
    row.outputs = max((entry.found for entry in of_outputs), default=None)
    row.own_outputs = max((entry.own for entry in of_outputs), default=None)
    if nearest is not None:
        row.tensor, row.error, row.own = nearest.name, nearest.found, nearest.own
        row.perturbed, row.allowed = nearest.perturbed, nearest.allowed(dtype)
    if settings.inductor and seed == 0:
        row.inductor = _peer(
            built,
            low,
            row,
            {name: (own[name], other.get(name, own[name])) for name in own},
            truth,
            eager,
            scale,
        )
    return found


def _peer(
    built: Built,
    low: torch.dtype,
    row: Row,
    limits: Mapping[str, tuple[float, float]],
    truth: Tensors,
    eager: Tensors,
    scale: Mapping[str, float],
) -> float | None:
    """Inductor's error in its worst tensor, as a part of what is allowed."""
    try:
        theirs = _run(compiled(_in(built, low), INDUCTOR), built.inputs, low)
    except Exception:
        return math.inf
    if list(theirs) != list(eager):
        return math.inf
    found = [
        Errors(name, *limits[name], error(theirs[name], truth[name], eager[name], scale[name]))
        for name in truth
    ]
    nearest = worst(found, row.dtype)
    return None if nearest is None else nearest.found / nearest.allowed(row.dtype)


def _compiled_run(built: Built, low: torch.dtype, backend: str, row: Row, seed: int) -> Tensors | None:
    torch.compiler.reset()
    began = time.perf_counter()
    with listen() as heard:
        try:
            actual = _run(compiled(_in(built, low), backend), built.inputs, low)
        except Exception as problem:
            row.outcome, row.detail = (
                (RAISES, _sentence(problem))
                if _capture_works(built, low)
                else (EAGER_FAILS, f"torch's capture: {_sentence(problem)}")
            )
            return None
        finally:
            graphs = compiled_graphs(heard)
            _note(row, graphs)
            row.parts["compile"] = round(row.parts.get("compile", 0.0) + time.perf_counter() - began, 2)
    if graphs.eager or not graphs.kernels:
        row.outcome = FELL_BACK
        row.detail = "; ".join(graphs.eager)[:300] or "no graph with a generated kernel"
    return actual


def _note(row: Row, graphs: Compiled) -> None:
    row.graphs, row.breaks, row.kernels, row.calls = (
        graphs.graphs,
        graphs.breaks,
        graphs.kernels,
        graphs.calls,
    )
    row.fallbacks = graphs.fallbacks


def _capture_works(built: Built, low: torch.dtype) -> bool:
    """Whether the same works with Dynamo and AOTAutograd alone, with nothing behind them that compiles."""
    torch.compiler.reset()
    try:
        _run(torch.compile(_in(built, low), backend="aot_eager", dynamic=False), built.inputs, low)
    except Exception:
        return False
    return True


# ---- the same numbers in every precision ---------------------------------------------------------


def _exact(built: Built, device: str) -> Built:
    """The model on its device with weights, buffers and inputs that bf16 holds exactly, so that one truth
    serves all.

    What is all ones or all zeros, as a new norm's weights are, becomes random about that: nothing then
    cancels or vanishes that would not in a trained model.
    """
    model = built.model.to(device)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator).to(device)
                if parameter.numel() and bool((parameter == parameter.reshape(-1)[0]).all()):
                    parameter.add_(0.1 * noise * max(1.0, float(parameter.reshape(-1)[0].abs())))
                parameter.copy_(_rounded(parameter))
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.copy_(_rounded(buffer))
    inputs = {name: _input(value, device) for name, value in built.inputs.items()}
    return Built(model, inputs, built.note)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    """To bf16 and back; what would become infinite stays the largest number there is."""
    most = torch.finfo(torch.bfloat16).max
    return torch.where(torch.isfinite(tensor), tensor.clamp(-most, most), tensor).bfloat16().to(tensor.dtype)


def _input(value: Any, device: str) -> Any:
    def exact(leaf: Any) -> Any:
        return _rounded(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(exact, moved(value, device))


def _in(built: Built, dtype: torch.dtype) -> nn.Module:
    """A copy of the model in a dtype; what the one copy keeps of a call, the others do not see."""
    return copied(built.model).to(dtype)


def _perturbed(model: nn.Module, size: float, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed + 101)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                    parameter.device
                )
                parameter.copy_(parameter.double() * (1 + size * noise))
    return model


class _Wide(TorchFunctionMode):
    """What asks for f32 gets double precision: models compute norms and angles in f32 whatever their
    dtype."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: self._wider(value) for name, value in (kwargs or {}).items()}
        if function is torch.Tensor.float:
            return torch.Tensor.double(*args)
        return function(*(self._wider(value) for value in args), **kwargs)

    @staticmethod
    def _wider(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value


def _run(
    model: Any, inputs: Mapping[str, Any], dtype: torch.dtype, wide: bool = False, seed: int = 0
) -> Tensors:
    """Outputs, and the gradients of all parameters for a random cotangent, by name."""
    if wide and hasattr(model, "set_experts_implementation"):
        # the fast ways to compute experts know no double precision
        model.set_experts_implementation("eager")
    if not wide:
        return _outputs_and_gradients(model, inputs, dtype, seed)
    try:
        with _Wide():
            return _outputs_and_gradients(model, inputs, dtype)
    except Exception:
        return _outputs_and_gradients(model, inputs, dtype)


def _outputs_and_gradients(
    model: Any, inputs: Mapping[str, Any], dtype: torch.dtype, seed: int = 0
) -> Tensors:
    torch.manual_seed(seed)
    given = {name: _cast(value, dtype) for name, value in inputs.items()}
    leaves = tensors_of(model(**given))
    generator = torch.Generator().manual_seed(11)
    roots, cotangents, results = [], [], {}
    for number, leaf in enumerate(leaves):
        cotangent = torch.randn(leaf.shape, generator=generator).bfloat16()
        if differentiable(leaf):
            roots.append(leaf)
            cotangents.append(cotangent.to(leaf.device, leaf.dtype))
        results[f"out:{number}"] = leaf.detach()
    names, parameters = zip(
        *(pair for pair in model.named_parameters() if pair[1].requires_grad), strict=True
    )
    gradients = torch.autograd.grad(roots, parameters, cotangents, allow_unused=True)
    for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
        gradient = torch.zeros_like(parameter) if gradient is None else gradient
        results[f"grad:{name.removeprefix('_orig_mod.')}"] = gradient.detach()
    return results


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(dtype) if leaf.is_floating_point() else leaf.clone()
        return leaf

    return pytree.tree_map(cast, value)


def _sentence(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {first_line(problem)}"[:300]
