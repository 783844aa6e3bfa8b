"""Loads candidates of autotuning, makes their operands, and runs, compares and times them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from polyfuse.autotune.candidate import (
    BuiltProgram,
    CallStep,
    KernelStep,
    Problem,
    Slot,
    Storage,
    TorchName,
    Window,
)
from polyfuse.plugin import Backend, Timer
from polyfuse.plugin.timing import default_timer
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.native import operator


def threads() -> int:
    """How many threads compute."""
    return torch.get_num_threads()


# Copies of cold operands: together larger than the caches, but not more than this many.
_MOST_COPIES = 64
# A single run that takes longer than this tells enough at first.
_LONG_SECONDS = 0.01
# Random numbers that are drawn; larger operands repeat them, out of step with any row.
_DRAWN = 65537

Action = Callable[[], Any]


class Benchmark:
    """Loads and times the candidates of one problem at a time.

    Args:
        backend: a backend by its name.
        timer: what times launches where a backend is the first one for a type of device; without it, what
            does so where no plugin says how.
    """

    def __init__(
        self, backend: Callable[[str], Backend], timer: Callable[[str, str], Timer] | None = None
    ) -> None:
        self._backend = backend
        self._timer = timer or (lambda _, device_type: default_timer(device_type))
        self._problem: Problem | None = None
        self._sets: list[list[torch.Tensor]] = []
        self._fresh: dict[int, torch.Tensor] = {}
        self._loaded: dict[str, list[Action]] = {}
        self._folders: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._reference: list[torch.Tensor] | None = None

    def prepare(self, problem: Problem, given: Mapping[int, torch.Tensor] | None = None) -> None:
        """Make the operands.

        Args:
            given: storages that are used as they are, by their numbers: flat tensors of the problem's types.
        """
        self.clear()
        cold = 0 if given else sum(_nbytes(storage) for storage in problem.storages if storage.cold)
        copies = 1
        if cold:
            wanted = self._timer(problem.timer, _device_type(problem)).cold_bytes
            copies = max(1, min(_MOST_COPIES, -(-wanted // cold)))
        first = [(given or {}).get(n, held) for n, held in enumerate(_filled(problem.storages))]
        self._sets = [first]
        for _ in range(copies - 1):
            pairs = zip(problem.storages, first, strict=True)
            self._sets.append([held.clone() if storage.cold else held for storage, held in pairs])
        updated = (number for number, storage in enumerate(problem.storages) if storage.updated)
        self._fresh = {number: first[number].clone() for number in updated}
        self._problem = problem

    def first(self, candidate: BuiltProgram) -> float:
        """Load a candidate, run it, and return the milliseconds of a second run."""
        runs = self._runs(candidate)
        self._restore()
        runs[0]()
        self._wait()
        best = float("inf")
        for turn in (1, 2):
            start = time.perf_counter()
            runs[turn % len(runs)]()
            self._wait()
            best = min(best, time.perf_counter() - start)
            if best > _LONG_SECONDS:
                break
        return best * 1e3

    def sample(self, candidate: BuiltProgram) -> float:
        """Milliseconds of one run of a candidate, from enough runs to tell."""
        runs = self._runs(candidate)
        problem = self._known()
        self._restore()
        # one clock for all candidates, whoever generates them
        timer = self._timer(problem.timer, _device_type(problem))
        found = timer.milliseconds(runs)
        if len(candidate.steps) == 1 or not timer.one_by_one:
            return found
        # Together, steps may be launched more slowly than they run, and one by one, they find nothing of each
        # other's results in a cache: neither happens in a model.
        one_by_one = [[self._action(step, held) for held in self._sets] for step in candidate.steps]
        return min(found, sum(timer.milliseconds(actions) for actions in one_by_one))

    def run(self, candidate: BuiltProgram) -> None:
        """Run a candidate once, so that its results are in the storages of the problem."""
        self._restore()
        self._run(candidate, self._sets[0])

    def held(self, number: int) -> torch.Tensor:
        """A storage, flat, as the last run left it."""
        return self._sets[0][number]

    def check(self, candidate: BuiltProgram, reference: BuiltProgram) -> float:
        """How far a candidate's results are from another's: up to 1 is within the tolerance."""
        problem = self._known()
        if self._reference is None:
            self._reference = self._results(reference)
        found = self._results(candidate)
        pairs = zip(found, self._reference, strict=True)
        return max((_distance(a, b, problem.tolerance) for a, b in pairs), default=0.0)

    def clear(self) -> None:
        """Let go of the problem."""
        self._problem, self._reference = None, None
        self._sets, self._fresh, self._loaded, self._folders = [], {}, {}, {}

    def _known(self) -> Problem:
        if self._problem is None:
            raise RuntimeError("no problem was prepared")
        return self._problem

    def _restore(self) -> None:
        """Put back what candidates have updated."""
        for number, fresh in self._fresh.items():
            for held in self._sets:
                held[number].copy_(fresh)

    def _wait(self) -> None:
        device_of(self._known().device).synchronize()

    def _runs(self, candidate: BuiltProgram) -> list[Action]:
        """The candidate on each set of operands."""
        if candidate.name not in self._loaded:
            made = [[self._action(step, held) for step in candidate.steps] for held in self._sets]
            self._loaded[candidate.name] = [_one(actions) for actions in made]
        return self._loaded[candidate.name]

    def _kernel(self, step: KernelStep) -> Callable[..., Any]:
        unit = step.backend, step.folder
        if unit not in self._folders:
            self._folders[unit] = self._backend(step.backend).load(Path(step.folder))
        return self._folders[unit][step.key]

    def _operands(self, step: KernelStep, held: Sequence[torch.Tensor]) -> list[object]:
        return [held[o.number] if isinstance(o, Slot) else _value(o, held) for o in step.operands]

    def _action(self, step: CallStep | KernelStep, held: Sequence[torch.Tensor]) -> Action:
        if isinstance(step, KernelStep):
            kernel, operands = self._kernel(step), self._operands(step, held)
            return lambda: kernel(*operands)
        function = operator(step.op, out=step.out)
        args = [_value(a, held) for a in step.args]
        named = {name: _value(value, held) for name, value in step.named}
        if step.out:
            named["out"] = _value(step.into, held)
        return lambda: function(*args, **named)

    def _results(self, candidate: BuiltProgram) -> list[torch.Tensor]:
        """What a candidate computes from fresh operands."""
        problem = self._known()
        held = _filled(problem.storages)
        self._run(candidate, held)
        return [held[number] for number in problem.results]

    def _run(self, candidate: BuiltProgram, held: Sequence[torch.Tensor]) -> None:
        for step in candidate.steps:
            made = self._action(step, held)()
            if isinstance(step, CallStep) and step.into is not None and not step.out:
                _value(step.into, held).copy_(made)
        self._wait()


def _device_type(problem: Problem) -> str:
    return problem.device.partition(":")[0]


def _filled(storages: Sequence[Storage]) -> list[torch.Tensor]:
    """Operands; equal in any process."""
    generators: dict[str, torch.Generator] = {}
    out: list[torch.Tensor] = []
    for storage in storages:
        if storage.device not in generators:
            # one of our own: the user's random numbers stay what they would be
            where = torch.device(storage.device)
            made = device_of(where.type).generator(where.index) or torch.Generator()
            generators[storage.device] = made.manual_seed(0)
        generator = generators[storage.device]
        dtype = getattr(torch, storage.dtype)
        held = torch.zeros(max(1, storage.count), dtype=dtype, device=storage.device)
        if storage.fill == "normal":
            _fill_normal(held, generator)
        elif storage.fill == "small":
            held.copy_(torch.randint(0, 8, held.shape, generator=generator, device=generator.device))
        elif storage.fill.startswith("ends "):
            total, groups = int(storage.fill.removeprefix("ends ")), torch.arange(1, held.numel() + 1)
            # not at round positions, where a mistake at the edge of a group would not show
            ends = (groups * total // held.numel() + groups % 3).clamp(max=total)
            ends[-1] = total
            held.copy_(ends)
        out.append(held)
    return out


def _fill_normal(held: torch.Tensor, generator: torch.Generator) -> None:
    """Fill with normally distributed numbers; drawing each one of a large operand would take longer than the
    trials.
    """
    wide = held.dtype if held.dtype in (torch.float32, torch.float64) else torch.float32
    count = min(held.numel(), _DRAWN)
    drawn = torch.randn(count, generator=generator, dtype=wide, device=generator.device).to(held.dtype)
    whole = held.numel() // count * count
    held[:whole].view(-1, count).copy_(drawn)
    held[whole:].copy_(drawn[: held.numel() - whole])


def _nbytes(storage: Storage) -> int:
    dtype: torch.dtype = getattr(torch, storage.dtype)
    return storage.count * dtype.itemsize


def _value(value: Any, held: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, Window):
        base = held[value.storage]
        dtype = getattr(torch, value.dtype)
        return (base if base.dtype is dtype else base.view(dtype)).as_strided(
            value.size, value.stride, value.offset
        )
    if isinstance(value, CallStep):
        return operator(value.op)(*(_value(a, held) for a in value.args))
    if isinstance(value, TorchName):
        return getattr(torch, value.name)
    if isinstance(value, tuple):
        return [_value(item, held) for item in value]
    return value


def _one(actions: Sequence[Action]) -> Action:
    if len(actions) == 1:
        return actions[0]

    def run() -> None:
        for action in actions:
            action()

    return run


def _distance(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> float:
    """The largest difference in units of what is allowed; infinite where only one is a number."""
    a, b = found.double(), wanted.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    worst = float((a - b).abs().max())
    if not wanted.is_floating_point():
        return 0.0 if worst == 0 else float("inf")
    largest = float(b.abs().max())
    return worst / (tolerance * largest) if largest else (0.0 if worst == 0 else float("inf"))
