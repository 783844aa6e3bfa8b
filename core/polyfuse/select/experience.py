"""What a session knows from earlier races of which configurations are worth building, and what it adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.base.digest import digest
from polyfuse.base.log import get_logger
from polyfuse.cache.samples import Race, Sample, SampleStore
from polyfuse.cache.timings import LOST
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Reduce, Scan
from polyfuse.plugin import Backend, Config
from polyfuse.select.heat import Heat
from polyfuse.select.learnt import Model, learn
from polyfuse.select.prune import guesses
from polyfuse.select.workshop import Entry, Ordered

__all__ = ["Experience", "Shortlist", "kernels_of"]

_log = get_logger("select")

# Of fewer configurations all are built.
_FEW = 8
# Milliseconds below which no time is believed.
_LEAST = 1e-9


@dataclass(frozen=True)
class Shortlist:
    """The configurations of a kernel that are built.

    Attributes:
        configs: the favourite of the backend first.
        spared: how many more would be built if nothing were known of earlier races.
    """

    configs: tuple[Config, ...]
    spared: int = 0


class Experience:
    """Models of one session, each made when it is first asked for.

    Args:
        store: keeps what races taught.
        group: the address of what is known of a kind of kernel of a backend on a device.
    """

    def __init__(self, store: SampleStore, group: Callable[[str, Backend, str], str]) -> None:
        self._store = store
        self._group = group
        self._models: dict[str, Model | None] = {}

    def shortlist(
        self, backend: Backend, kernel: Kernel, offered: Sequence[Config], usual: Sequence[Config]
    ) -> Shortlist:
        """Which configurations to build: where enough is known, half of what is usual, unless more may win;
        and one that seems not worth it, since what is never tried is never learnt.

        Args:
            offered: all that the backend offers.
            usual: what is built where nothing is known.
        """
        model = self._model(backend, kernel) if len(usual) >= _FEW else None
        if model is None or not model.knows(sizes_of(kernel)):
            return Shortlist(tuple(usual))
        found = list(dict.fromkeys((*offered, *usual)))
        judged, estimates = _judged(backend, kernel, found, model.estimated)
        common = [config for config in usual if config in judged]
        if len(common) < _FEW:
            return Shortlist(tuple(usual))
        scores = model.scores(sizes_of(kernel), [_values(config) for config in judged], estimates)
        ranked = [judged[i] for i in sorted(range(len(judged)), key=lambda i: (scores[i], i))]
        wanted = max(len(model.worthy(scores)), -(-len(common) // 2))
        best = list(dict.fromkeys([*(c for c in usual[:1] if c in judged), *ranked]))[:wanted]
        left = [config for config in common if config not in best]
        if left:
            best.append(left[sum(digest(ir_digest(kernel)).encode()) % len(left)])
        built = list(dict.fromkeys([usual[0], *best, *(c for c in usual if c not in judged)]))[: len(usual)]
        _log.info("of %s, %d of %d are built: %s", kernel.name, len(built), len(usual), model.about)
        return Shortlist(tuple(built), len(usual) - len(built))

    def add(self, heat: Heat) -> None:
        """Learn from a race."""
        for place, ((name, kernel), entries) in enumerate(kernels_of(heat).items()):
            backend = next(e.backend for e in entries if e.backend is not None)
            configs = [entry.config for entry in entries if entry.config is not None]
            guessed = [_usable(guess) for guess in guesses(backend, kernel, configs)]
            some = any(guess is not None for guess in guessed)
            samples = tuple(
                Sample(_values(config), guess, max(heat.times[entry.name], _LEAST))
                for entry, config, guess in zip(entries, configs, guessed, strict=True)
                if guess is not None or not some
            )
            race = Race(f"{name}: {kind_of(kernel)} on {kernel.device}", sizes_of(kernel), samples)
            if sum(s.milliseconds != LOST for s in samples) > 1:
                self._store.add(
                    self._group(kind_of(kernel), backend, kernel.device), heat.bout.key, place, race
                )

    def renew(self) -> None:
        """Take what was added into account from now on; not before, so that one race knows one model."""
        self._models.clear()

    def _model(self, backend: Backend, kernel: Kernel) -> Model | None:
        if self._store.empty:
            return None
        group = self._group(kind_of(kernel), backend, kernel.device)
        if group not in self._models:
            self._models[group] = learn(self._store.races(group))
        return self._models[group]


def kernels_of(heat: Heat) -> Mapping[tuple[str, Kernel], Sequence[Entry]]:
    """The entries of a race that were timed, by the backend's name and the kernel that they configure."""
    raced: dict[tuple[str, Kernel], list[Entry]] = {}
    for entry in heat.entries.values():
        kernel = _kernel_of(entry)
        if kernel is not None and entry.backend is not None and entry.name in heat.times:
            raced.setdefault((entry.backend.name, kernel), []).append(entry)
    return raced


def kind_of(kernel: Kernel) -> str:
    """Kernels that are alike enough to learn of one from the other: by what they reduce or scan, and how wide
    what they read is.
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


def _kernel_of(entry: Entry) -> Kernel | None:
    """The kernel that an entry's configuration is of."""
    if entry.backend is None or entry.config is None:
        return None
    for step in entry.steps:
        if isinstance(step, Ordered) and step.backend is entry.backend and step.config == entry.config:
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
