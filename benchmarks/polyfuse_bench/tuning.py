"""How long choosing implementations takes: the mode `max-autotune` beside the default, each from the call of
`torch.compile` to the first result in a fresh process, with empty caches and with those of the first process.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse_bench.backends import INDUCTOR, POLYFUSE

# Without device graphs, which are recorded in the same call and are no part of the choice.
MODE = "max-autotune-no-cudagraphs"

CANDIDATES = (INDUCTOR, f"{INDUCTOR}:{MODE}", POLYFUSE, f"{POLYFUSE}:{MODE}")

TARGETS = ("bert",)


def seconds_of_choice(seconds: Mapping[str, float], backend: str) -> float | None:
    """What the mode adds to a start, at least nothing; None where one of both failed."""
    names = (backend, f"{backend}:{MODE}")
    if any(name not in seconds for name in names):
        return None
    return max(0.0, seconds[names[1]] - seconds[names[0]])
