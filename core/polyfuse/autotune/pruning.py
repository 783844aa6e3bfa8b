"""Which configurations are worth building, by what their backend guesses of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.autotune.candidate import CandidateProgram, KernelRequest
from polyfuse.autotune.cost_model import CostModel, fit_model
from polyfuse.autotune.search import Search
from polyfuse.base.digest import digest
from polyfuse.base.log import get_logger
from polyfuse.cache.samples import KernelSamples, Sample, SampleStore
from polyfuse.cache.timings import FAILED
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Reduce, Scan
from polyfuse.plugin import Backend, Config

__all__ = ["CostModels", "PrunedConfigs", "guesses", "kernels_of", "worth_building"]

_log = get_logger("autotune")

# What is guessed to take longer than the best guess by more than this is not built: guesses are rough.
_HOPELESS = 2.0


def worth_building(backend: Backend, kernel: Kernel, configs: Sequence[Config], most: int) -> list[Config]:
    """At most so many configurations: the baseline of the backend, then what may be as fast by its estimate.

    Where it has no estimate of one of them, its own order decides.
    """
    found = list(dict.fromkeys(configs))
    known = [guess for guess in guesses(backend, kernel, found) if guess is not None]
    if len(known) < len(found) or len(found) < 2:
        return found[:most]
    limit = _HOPELESS * min(known)
    ranked = sorted(range(1, len(found)), key=lambda i: known[i])
    return [found[0], *(found[i] for i in ranked if known[i] <= limit)][:most]


def guesses(backend: Backend, kernel: Kernel, configs: Sequence[Config]) -> list[float | None]:
    """What a backend estimates of each."""
    return [_guess(backend, kernel, config) for config in configs]


def _guess(backend: Backend, kernel: Kernel, config: Config) -> float | None:
    try:
        return backend.estimate(kernel, config)
    except Exception as error:
        _log.info("backend %r raised %r over an estimate of %s", backend.name, error, config)
        return None


# Of fewer configurations all are built.
_FEW = 8
# Milliseconds below which no time is believed.
_LEAST = 1e-9


@dataclass(frozen=True)
class PrunedConfigs:
    """The configurations of a kernel that are built.

    Attributes:
        configs: the baseline of the backend first.
        pruned: how many more would be built if nothing were known of earlier races.
    """

    configs: tuple[Config, ...]
    pruned: int = 0


class CostModels:
    """Models of one session, each made when it is first asked for.

    Args:
        store: keeps what races taught.
        group: the address of what is known of a kind of kernel of a backend on a device.
    """

    def __init__(self, store: SampleStore, group: Callable[[str, Backend, str], str]) -> None:
        self._store = store
        self._group = group
        self._models: dict[str, CostModel | None] = {}

    def prune(
        self, backend: Backend, kernel: Kernel, offered: Sequence[Config], default: Sequence[Config]
    ) -> PrunedConfigs:
        """Which configurations to build: where enough is known, half of what is default, unless more may win;
        and one that seems not worth it, since what is never tried is never learnt.

        Args:
            offered: all that the backend offers.
            default: what is built where nothing is known.
        """
        model = self._model(backend, kernel) if len(default) >= _FEW else None
        if model is None or not model.knows(sizes_of(kernel)):
            return PrunedConfigs(tuple(default))
        found = list(dict.fromkeys((*offered, *default)))
        judged, estimates = _judged(backend, kernel, found, model.estimated)
        common = [config for config in default if config in judged]
        if len(common) < _FEW:
            return PrunedConfigs(tuple(default))
        scores = model.scores(sizes_of(kernel), [_values(config) for config in judged], estimates)
        ranked = [judged[i] for i in sorted(range(len(judged)), key=lambda i: (scores[i], i))]
        wanted = max(len(model.within_margin(scores)), -(-len(common) // 2))
        best = list(dict.fromkeys([*(c for c in default[:1] if c in judged), *ranked]))[:wanted]
        left = [config for config in common if config not in best]
        if left:
            best.append(left[sum(digest(ir_digest(kernel)).encode()) % len(left)])
        built = list(dict.fromkeys([default[0], *best, *(c for c in default if c not in judged)]))[
            : len(default)
        ]
        _log.info("of %s, %d of %d are built: %s", kernel.name, len(built), len(default), model.about)
        return PrunedConfigs(tuple(built), len(default) - len(built))

    def add(self, search: Search) -> None:
        """Learn from a race."""
        for place, ((name, kernel), entries) in enumerate(kernels_of(search).items()):
            backend = next(e.backend for e in entries if e.backend is not None)
            configs = [entry.config for entry in entries if entry.config is not None]
            guessed = [_usable(guess) for guess in guesses(backend, kernel, configs)]
            some = any(guess is not None for guess in guessed)
            samples = tuple(
                Sample(_values(config), guess, max(search.times[entry.name], _LEAST))
                for entry, config, guess in zip(entries, configs, guessed, strict=True)
                if guess is not None or not some
            )
            race = KernelSamples(f"{name}: {kind_of(kernel)} on {kernel.device}", sizes_of(kernel), samples)
            if sum(s.milliseconds != FAILED for s in samples) > 1:
                self._store.add(
                    self._group(kind_of(kernel), backend, kernel.device), search.task.key, place, race
                )

    def renew(self) -> None:
        """Take what was added into account from now on; not before, so that one race knows one model."""
        self._models.clear()

    def _model(self, backend: Backend, kernel: Kernel) -> CostModel | None:
        if self._store.empty:
            return None
        group = self._group(kind_of(kernel), backend, kernel.device)
        if group not in self._models:
            self._models[group] = fit_model(self._store.races(group))
        return self._models[group]


def kernels_of(search: Search) -> Mapping[tuple[str, Kernel], Sequence[CandidateProgram]]:
    """The entries of a race that were timed, by the backend's name and the kernel that they configure."""
    raced: dict[tuple[str, Kernel], list[CandidateProgram]] = {}
    for entry in search.entries.values():
        kernel = _kernel_of(entry)
        if kernel is not None and entry.backend is not None and entry.name in search.times:
            raced.setdefault((entry.backend.name, kernel), []).append(entry)
    return raced


def kind_of(kernel: Kernel) -> str:
    """What kernels share that one cost model serves: what they reduce or scan, and how wide what they read
    is.
    """
    reduced = {
        f"{stmt.op} {stmt.kind}"
        for section in kernel.sections
        for stmt in section.body
        if isinstance(stmt, (Reduce, Scan))
    }
    width = max((arg.dtype.itemsize for arg in kernel.args if arg.kind != "size"), default=0)
    return f"{' and '.join(sorted(reduced)) or 'pointwise'} of {width} bytes"


def sizes_of(kernel: Kernel) -> tuple[int, ...]:
    """The example sizes of a kernel: all outer axes together, the last two, and all that is reduced."""
    axes = kernel.size_hints[: len(kernel.axes)]
    outer, last = axes[:-2], (1, 1, *axes)[-2:]
    return math.prod(outer), *last, math.prod(kernel.size_hints[len(kernel.axes) :])


def _kernel_of(entry: CandidateProgram) -> Kernel | None:
    """The kernel that an entry's configuration is of."""
    if entry.backend is None or entry.config is None:
        return None
    for step in entry.steps:
        if isinstance(step, KernelRequest) and step.backend is entry.backend and step.config == entry.config:
            return step.kernel
    return None


def _values(config: Config) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, int(value)) for name, value in config.values))


def _judged(
    backend: Backend, kernel: Kernel, found: Sequence[Config], estimated: bool
) -> tuple[list[Config], list[float] | None]:
    """The configurations of which a model can say something, with their estimates if it needs these."""
    if not estimated:
        return list(found), None
    guessed = zip(found, guesses(backend, kernel, found), strict=True)
    usable = [(config, known) for config, guess in guessed if (known := _usable(guess)) is not None]
    return [config for config, _ in usable], [guess for _, guess in usable]


def _usable(guess: float | None) -> float | None:
    return guess if guess is not None and math.isfinite(guess) and guess > 0 else None
