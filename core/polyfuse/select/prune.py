"""Which configurations are worth building, by what their backend guesses of each."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.base.log import get_logger
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config

__all__ = ["guesses", "worth_building"]

_log = get_logger("select")

# What is guessed to take longer than the best guess by more than this is not built: guesses are rough.
_HOPELESS = 2.0


def worth_building(backend: Backend, kernel: Kernel, configs: Sequence[Config], most: int) -> list[Config]:
    """At most so many configurations: the favourite of the backend, then what may be as fast by its estimate.

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
