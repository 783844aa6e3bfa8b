"""Which configurations are worth building: by what their backend estimates of each, and by cost models fitted
to earlier trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

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

_log = get_logger("autotune")

# What is guessed to take longer than the best guess by more than this is not built: guesses are rough.
_HOPELESS = 2.0
# Of a backend's ranking, so many are built at first.
_FIRST = 4
# Around the best, what is guessed to take longer than it by more than this is not built, and not more than so
# many: each takes a second of a CPU, and the best of the first few is near all others.
_PROMISING = 1.1
_MOST_PROMISING = 8


def worth_building(backend: Backend, kernel: Kernel, configs: Sequence[Config], most: int) -> list[Config]:
    """At most so many configurations: the backend's first guess, then what may be as fast by its estimate.

    Where it has no estimate of one of them, its own order decides.
    """
    found = list(dict.fromkeys(configs))
    known = [guess for guess in guesses(backend, kernel, found) if guess is not None]
    if len(known) < len(found) or len(found) < 2:
        return found[:most]
    limit = _HOPELESS * min(known)
    ranked = sorted(range(1, len(found)), key=lambda i: known[i])
    return [found[0], *(found[i] for i in ranked if known[i] <= limit)][:most]


def first_few(backend: Backend, kernel: Kernel, configs: Sequence[Config]) -> Sequence[Config]:
    """The configurations of a first round, of those that `worth_building` ranked: what follows is built where
    one of these does well. All, where the backend has no estimate of one.
    """
    few = configs[:_FIRST]
    return configs if None in guesses(backend, kernel, few) else few


def promising(backend: Backend, kernel: Kernel, best: Config, configs: Sequence[Config]) -> Sequence[Config]:
    """What the backend estimates to be about as fast as the best so far, likeliest first. All, where it has
    no estimate of one.
    """
    found = [config for config in dict.fromkeys(configs) if config != best]
    own, *known = guesses(backend, kernel, [best, *found])
    ranked = [(guess, n) for n, guess in enumerate(known) if guess is not None]
    if own is None or len(ranked) < len(found):
        return found
    return [found[n] for guess, n in sorted(ranked) if guess <= _PROMISING * own][:_MOST_PROMISING]


def guesses(backend: Backend, kernel: Kernel, configs: Sequence[Config]) -> list[float | None]:
    """What a backend estimates of each."""
    return [backend.estimate(kernel, config) for config in configs]


# Of fewer configurations all are built.
_FEW = 8
# Milliseconds below which no time is believed.
_LEAST = 1e-9


class CostModels:
    """The cost models of one session, each fitted when it is first asked for.

    Args:
        store: of the training data.
        group: the address of the samples of a kind of kernel of a backend on a device.
    """

    def __init__(self, store: SampleStore, group: Callable[[str, Backend, str], str]) -> None:
        self._store = store
        self._group = group
        self._models: dict[str, CostModel | None] = {}

    def prune(
        self, backend: Backend, kernel: Kernel, offered: Sequence[Config], usual: Sequence[Config]
    ) -> tuple[Config, ...]:
        """Which configurations to build, the backend's first guess first: where enough is known, half of the
        usual ones, unless more may be the fastest; and one that seems slow, since what is never tried is
        never learned.

        Args:
            offered: all that the backend offers.
            usual: what is built where nothing is known.
        """
        model = self._model(backend, kernel) if len(usual) >= _FEW else None
        if model is None or not model.knows(sizes_of(kernel)):
            return tuple(usual)
        found = list(dict.fromkeys((*offered, *usual)))
        judged, estimates = _judged(backend, kernel, found, model.estimated)
        common = [config for config in usual if config in judged]
        if len(common) < _FEW:
            return tuple(usual)
        scores = model.scores(sizes_of(kernel), [_values(config) for config in judged], estimates)
        ranked = [judged[i] for i in sorted(range(len(judged)), key=lambda i: (scores[i], i))]
        wanted = max(len(model.within_margin(scores)), -(-len(common) // 2))
        best = list(dict.fromkeys([*(c for c in usual[:1] if c in judged), *ranked]))[:wanted]
        left = [config for config in common if config not in best]
        if left:
            best.append(left[sum(digest(ir_digest(kernel)).encode()) % len(left)])
        unjudged = [config for config in usual if config not in judged]
        built = tuple(dict.fromkeys([usual[0], *best, *unjudged]))[: len(usual)]
        _log.info("of %s, %d of %d are built: %s", kernel.name, len(built), len(usual), model.about)
        return built

    def add(self, search: Search) -> None:
        """Take the trials of a search into the training data."""
        for position, ((name, kernel), programs) in enumerate(kernels_of(search).items()):
            backend = next(p.backend for p in programs if p.backend is not None)
            configs = [p.config for p in programs if p.config is not None]
            guessed = [_usable(guess) for guess in guesses(backend, kernel, configs)]
            some = any(guess is not None for guess in guessed)
            samples = tuple(
                Sample(_values(config), guess, max(search.trials[p.candidate].milliseconds, _LEAST))
                for p, config, guess in zip(programs, configs, guessed, strict=True)
                if guess is not None or not some
            )
            found = KernelSamples(f"{name}: {kind_of(kernel)} on {kernel.device}", sizes_of(kernel), samples)
            if sum(s.milliseconds != FAILED for s in samples) > 1:
                group = self._group(kind_of(kernel), backend, kernel.device)
                self._store.add(group, search.task.key, position, found)

    def renew(self) -> None:
        """Take what was added into account from now on; not before, so that one search knows one model."""
        self._models.clear()

    def _model(self, backend: Backend, kernel: Kernel) -> CostModel | None:
        if self._store.empty:
            return None
        group = self._group(kind_of(kernel), backend, kernel.device)
        if group not in self._models:
            self._models[group] = fit_model(self._store.read(group))
        return self._models[group]


def kernels_of(search: Search) -> Mapping[tuple[str, Kernel], Sequence[CandidateProgram]]:
    """The programs of a search that were timed, by the backend's name and the kernel that they configure."""
    timed: dict[tuple[str, Kernel], list[CandidateProgram]] = {}
    for program in search.programs.values():
        kernel = _kernel_of(program)
        if kernel is not None and program.backend is not None and program.candidate in search.trials:
            timed.setdefault((program.backend.name, kernel), []).append(program)
    return timed


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


def _kernel_of(program: CandidateProgram) -> Kernel | None:
    """The kernel that a program's configuration is of."""
    if program.backend is None or program.config is None:
        return None
    for step in program.steps:
        if (
            isinstance(step, KernelRequest)
            and step.backend is program.backend
            and step.config == program.config
        ):
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
