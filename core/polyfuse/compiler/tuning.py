"""Choosing a kernel's configuration by timing: a descent from the backend's best guess.

The first round times what the backend offers; each further one what lies around the best so far, until none
of it is faster. The candidates of a round are built in parallel and timed one after another. What was
measured is remembered, so that the next process starts with the winner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.log import get_logger
from polyfuse.cache import Located
from polyfuse.cache.timings import LOST, Measured, timing_key
from polyfuse.compiler.naming import emit_named
from polyfuse.compiler.session import CompileSession
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.plugin import Backend, Config, No, Source
from polyfuse.program.memory import example_value
from polyfuse.symbolic import IndexLike
from polyfuse.workers import BuildFuture

__all__ = ["Race", "race_for", "sample_operands"]

_log = get_logger("compiler")

# Two races at once would disturb each other's measurements.
_TIMING = threading.Lock()
# A configuration that is faster by less than this is not worth a further round.
_GAIN = 0.98


@dataclass(frozen=True)
class Race:
    """A kernel whose configuration is to be chosen.

    Attributes:
        backend, kernel: what is configured.
        session: builds, and keeps measurements.
        key: under which they are kept.
        first: builds of the first round, begun when the kernel was emitted.
    """

    backend: Backend
    kernel: Kernel
    session: CompileSession
    key: str
    first: _Round

    def run(self) -> Config | None:
        """Time candidates, remember, and return the fastest; None if every one of them fails."""
        with _TIMING:
            return self._run()

    def _run(self) -> Config | None:
        store = self.session.timings
        known = dict(store.read(self.key).milliseconds)
        tried: dict[str, Config] = {}
        operands = sample_operands(self.kernel)
        best: Config | None = None
        deadline = time.monotonic() + self.session.settings.tune_seconds
        current: _Round | None = self.first
        while current is not None:
            for config, source in current.sources.items():
                tried[str(config)] = config
                if str(config) not in known:
                    known[str(config)] = self._time(current.future, source, operands)
            store.write(self.key, Measured(known))
            fastest = min(tried, key=lambda name: known[name])
            if known[fastest] == LOST:
                break
            before, best = best, tried[fastest]
            current = None
            if before is not None and known[fastest] > _GAIN * known[str(before)]:
                break
            if time.monotonic() < deadline:
                around = self.backend.neighbours(self.kernel, best)
                current = _begin(self.backend, self.kernel, around, tried, known, self.session)
        if best is not None:
            store.write(self.key, Measured(known, str(best)))
            _log.info(
                "kernel %s: %s is the fastest of %d at %.4f ms",
                self.kernel.name, best, len(tried), known[str(best)],
            )  # fmt: skip
        return best

    def _time(self, future: BuildFuture | None, source: Source, operands: Sequence[object]) -> float:
        """Milliseconds of one candidate, or `LOST`."""
        assert future is not None  # else all of the round was measured before
        name = self.kernel.name
        outcome = future.outcomes()[source.key]
        if isinstance(outcome, PolyfuseError):
            _log.info("a candidate of kernel %s is out: %s", name, outcome.cause)
            return LOST
        place = future.places()[source.key]
        assert isinstance(place, Located)  # else the outcome would have been an error
        try:
            verdict = self.backend.review(place.folder, place.source_key)
            if isinstance(verdict, No):
                _log.info("a candidate of kernel %s is out: %s", name, verdict.reason)
                return LOST
            return self.backend.benchmark(outcome, operands)
        except Exception as error:
            _log.info("a candidate of kernel %s is out: %s", name, error)
            return LOST
        finally:
            # of dozens, one will be used
            self.session.pool.unload(self.backend, place.folder)


@dataclass(frozen=True)
class _Round:
    """Candidates timed together; those that were measured before are not built."""

    sources: Mapping[Config, Source]
    future: BuildFuture | None


def race_for(backend: Backend, kernel: Kernel, session: CompileSession) -> Config | Race | None:
    """The configuration that won an earlier race, or a new race, or None where there is nothing to choose."""
    configs = backend.configs(kernel)
    if len(configs) < 2:
        return None
    key = timing_key(ir_digest(kernel), backend.name, backend.describe(), backend.machine())
    measured = session.timings.read(key)
    if measured.best is not None:
        known = _spelled(measured.best)
        if known is not None:
            return known
    first = _begin(backend, kernel, configs, {}, measured.milliseconds, session)
    return Race(backend, kernel, session, key, first) if first is not None else None


def sample_operands(kernel: Kernel) -> list[object]:
    """Operands of the example sizes, to time a kernel with.

    Floating-point numbers are random: zeros and NaN are unlike anything that is worth measuring. Whole
    numbers are zero, because they may be indices.
    """
    sizes = {arg.name: arg.hint if arg.hint is not None else 1 for arg in kernel.args if arg.kind == "size"}
    # one of our own: the user's random numbers stay what they would be
    generator = torch.Generator(device=kernel.device).manual_seed(0)
    return [
        sizes[arg.name] if arg.kind == "size" else _buffer(arg, kernel.device, sizes, generator)
        for arg in kernel.args
    ]


def _buffer(
    arg: KernelArg, device: str, sizes: Mapping[str, int], generator: torch.Generator
) -> torch.Tensor:
    numel: IndexLike = arg.numel if arg.numel is not None else 0
    buffer = torch.zeros(max(1, example_value(numel, sizes)), dtype=arg.dtype.torch, device=device)
    if arg.dtype.is_float and arg.kind != "out":
        numbers = torch.randn(buffer.shape, generator=generator, dtype=torch.float32, device=device)
        buffer.copy_(numbers)
    return buffer


def _begin(
    backend: Backend,
    kernel: Kernel,
    configs: Iterable[Config],
    tried: Mapping[str, Config],
    known: Mapping[str, float],
    session: CompileSession,
) -> _Round | None:
    """Start to build the candidates that are new; None if there are none."""
    sources: dict[Config, Source] = {}
    for config in configs:
        if str(config) in tried or config in sources:
            continue
        try:
            sources[config] = emit_named(backend, kernel, config)
        except Exception as error:
            _log.info("backend %r cannot emit %s with %s: %s", backend.name, kernel.name, config, error)
    if not sources:
        return None
    wanted = [source for config, source in sources.items() if str(config) not in known]
    return _Round(sources, session.pool.submit(backend, wanted, session.store) if wanted else None)


def _spelled(text: str) -> Config | None:
    """The configuration that prints as a text."""
    try:
        pairs = [part.partition("=") for part in text.split()]
        return Config(tuple((name, int(value)) for name, _, value in pairs))
    except ValueError:
        return None
