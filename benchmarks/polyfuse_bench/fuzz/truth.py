"""What a program should answer, and how far from it an answer may be.

The truth is the program in float64. How much of a difference rounding explains is found out by running it in
float64 again, with an error of the size of a rounding added to it after each operator (`noise.py`): where
programs amplify it, through a difference of nearly equal values or a division by a small one, the noise grows
with it. Beside that stands the error of eager mode itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polyfuse_bench.fuzz.noise import Inner, Noise, coarsest
from polyfuse_bench.fuzz.program import Program, namespace

__all__ = ["Difference", "Truth", "truth_of", "with_gradients"]

_NOISES = 3
_MORE_NOISES = 16

# By how much a backend may err more than the noise, at an element and over the whole tensor.
_AT_ELEMENT, _OVER_TENSOR = 8.0, 3.0

# Accumulations are in float32 or better, in another order than eager mode's.
_ACCUMULATED = 2.0**-21


@dataclass(frozen=True)
class Difference:
    """A result that is wrong.

    Attributes:
        what: the result.
        ratio: its error, at the worst element, over what is allowed there.
        norm: the norm of its error over that of the truth; that of eager mode is `eager`.
    """

    what: str
    ratio: float
    norm: float = 0.0
    eager: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


@dataclass
class Truth:
    """What a program answers: its results, and its inputs afterwards or their gradients."""

    program: Program
    gradients: bool
    exact: list[Tensor]
    eager: list[Tensor]
    _noisy: list[list[Tensor]]

    @property
    def names(self) -> list[str]:
        """What each of the tensors is."""
        if self.gradients:
            floats = [i.name for i in self.program.inputs if i.text.startswith("normal")]
            return [*(f"result {n}" for n in self.program.results), *(f"gradient of {n}" for n in floats)]
        inputs = [f"input {i.name} afterwards" for i in self.program.inputs]
        return [*(f"result {n}" for n in self.program.results), *inputs]

    def differences(self, found: Sequence[Tensor]) -> list[Difference]:
        """What is wrong with an answer. Where something seems to be, more noise is tried first."""
        wrong = self._differences(found)
        if wrong and len(self._noisy) < _MORE_NOISES:
            types = _types_of(self.program)
            for number in range(len(self._noisy), _MORE_NOISES):
                self._noisy.append(_run_with_noise(self.program, number, types, self.gradients))
            wrong = self._differences(found)
        return wrong

    def _differences(self, found: Sequence[Tensor]) -> list[Difference]:
        if len(found) != len(self.exact):
            return [Difference("results", float("inf"), detail=f"{len(found)}, not {len(self.exact)}")]
        wrong: list[Difference] = []
        for i, (name, value) in enumerate(zip(self.names, found, strict=True)):
            noisy = [run[i] for run in self._noisy]
            different = _compare(name, value.detach().cpu(), self.exact[i], self.eager[i], noisy)
            if different is not None:
                wrong.append(different)
        return wrong


def truth_of(program: Program, gradients: bool = False) -> Truth:
    """Run a program in eager mode, in float64, and in float64 with noise."""
    arguments = program.arguments()
    if gradients:
        eager = with_gradients(program, program.function(), arguments)
    else:
        eager = [*program.function()(*arguments), *arguments]
    types = _types_of(program)
    noisy = [_run_with_noise(program, number, types, gradients) for number in range(_NOISES)]
    return Truth(program, gradients, _run(program, None, None, gradients), [t.clone() for t in eager], noisy)


def with_gradients(
    program: Program, run: Callable[..., Sequence[Tensor]], arguments: Sequence[Tensor]
) -> list[Tensor]:
    """Results, and gradients of the floating-point inputs for cotangents drawn at random: those of a mean
    square after a normalisation, for instance, would be nothing but rounding.
    """
    inputs = [a.requires_grad_() if a.is_floating_point() else a for a in arguments]
    wanted = [i for i in inputs if i.requires_grad]
    with torch.enable_grad():
        results = list(run(*inputs))
        generator = torch.Generator().manual_seed(program.seed)
        chosen, cotangents = [], []
        for result in results:
            # of a type that holds these values: 16 bits of either kind do
            drawn = torch.randint(-8, 9, result.shape, generator=generator) / 8
            if result.requires_grad:
                chosen.append(result)
                cotangents.append(drawn.to(result.device, result.dtype))
        if not chosen:
            return [*results, *(torch.zeros_like(i) for i in wanted)]
        found = torch.autograd.grad(chosen, wanted, cotangents, allow_unused=True, materialize_grads=True)
    return [*(r.detach() for r in results), *found]


@dataclass(frozen=True)
class _Types:
    """The types of a program in eager mode: of each value, and in which each statement computes."""

    values: dict[str, torch.dtype]
    inner: tuple[torch.dtype, ...]


def _types_of(program: Program) -> _Types:
    space = {**namespace(), **_bound(program, wide=False)}
    inner = tuple(coarsest(partial(exec, statement.code, space)) for statement in program.statements)
    return _Types({name: value.dtype for name, value in space.items() if isinstance(value, Tensor)}, inner)


def _bound(program: Program, wide: bool) -> dict[str, Tensor]:
    return {i.name: value for i, value in zip(program.inputs, program.arguments(wide), strict=True)}


def _run_with_noise(program: Program, number: int, types: _Types, gradients: bool) -> list[Tensor]:
    noise = Noise(program.seed * 31 + number, types.values)
    if not gradients:
        return _run(program, noise, types, gradients)
    # each value and each gradient of it
    wide = all(dtype == torch.float64 for dtype in types.inner)
    with Inner(noise, torch.float64 if wide else torch.float32):
        return _run(program, noise, types, gradients)


def _run(program: Program, noise: Noise | None, types: _Types | None, gradients: bool) -> list[Tensor]:
    """The program in float64, with its gradients if they are wanted."""
    inputs = _bound(program, wide=True)
    if not gradients:
        return [t.clone() for t in (*_results(program, noise, types, inputs), *inputs.values())]

    def run(*values: Tensor) -> list[Tensor]:
        return _results(program, noise, None, dict(zip(inputs, values, strict=True)))

    return with_gradients(program, run, list(inputs.values()))


def _results(
    program: Program, noise: Noise | None, types: _Types | None, inputs: dict[str, Tensor]
) -> list[Tensor]:
    """What the program answers in float64, computed statement by statement.

    Args:
        types: in which statements compute, where each gets noise of its own inside.
    """
    space = {**namespace(wide=True), **inputs}
    for number, statement in enumerate(program.statements):
        seen = space
        if noise is not None and statement.reads:
            seen = dict(space)
            for name in statement.reads:
                if name != statement.writes and space[name].is_floating_point():
                    seen[name] = space[name] * noise.factor(space[name], _ACCUMULATED)
        inside = noise is not None and types is not None and statement.rounds
        with Inner(noise, types.inner[number]) if inside else nullcontext():
            exec(statement.wide_code, seen)
        for name in statement.targets:
            space[name] = seen[name]
        if noise is None or not statement.rounds:
            continue
        for name in statement.targets:
            if space[name].is_floating_point():
                space[name] = space[name] * noise.factor(space[name], noise.rounding(name))
        if statement.writes and space[statement.writes].is_floating_point():
            written = space[statement.writes]
            written.mul_(noise.factor(written, noise.rounding(statement.writes)))
    return [space[n] for n in program.results]


def _compare(
    name: str, found: Tensor, exact: Tensor, eager: Tensor, noisy: Sequence[Tensor]
) -> Difference | None:
    if found.dtype != eager.dtype or found.shape != eager.shape:
        detail = f"{found.dtype} {list(found.shape)}, not {eager.dtype} {list(eager.shape)}"
        return Difference(name, float("inf"), detail=detail)
    if not found.dtype.is_floating_point:
        if torch.equal(found, eager):
            return None
        bad = (found != eager).flatten().nonzero().flatten()
        at = int(bad[0])
        values = f"{found.flatten()[at].item()}, not {eager.flatten()[at].item()}"
        return Difference(
            name, float("inf"), detail=f"{len(bad)} of {found.numel()} differ; element {at} is {values}"
        )
    mine, theirs = found.double(), eager.double()
    error, usual = _distance(mine, exact), _distance(theirs, exact)
    spread = torch.stack([_distance(n, exact) for n in noisy]).amax(0)
    info = torch.finfo(found.dtype)
    allowed = (
        _AT_ELEMENT * spread
        + _OVER_TENSOR * _mean(spread)
        + 3 * usual
        + _mean(usual)
        + 1.01 * info.eps * exact.abs().nan_to_num(nan=0.0, posinf=0.0)
        + max(info.smallest_normal, 1e-30)
    )
    ratio = float((error / allowed).max()) if error.numel() else 0.0
    if ratio <= 1:
        return None
    at = int((error / allowed).flatten().argmax())
    size = float(exact.nan_to_num().norm()) or 1.0
    norm, own = float(error.norm()) / size, float(usual.norm()) / size
    values = ", ".join(f"{t.flatten()[at].item():.7g}" for t in (mine, exact, theirs))
    detail = (
        f"{int((error > allowed).sum())} of {error.numel()} elements are wrong; at {at}: found, float64 and "
        f"eager = {values}; error of the norm {norm:.3g} (eager {own:.3g}); {ratio:.3g} times what is allowed"
    )
    return Difference(name, ratio, norm, own, detail)


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Distances: infinite where only one is a number, zero where both are the same infinity or no number."""
    same = (one == other) | (one.isnan() & other.isnan())
    distance = (one - other).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    return torch.where(same, 0.0, distance)


def _mean(spread: Tensor) -> float:
    finite = spread[spread.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
