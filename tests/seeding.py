"""Random numbers of tests: each test draws its own, whichever ran before it in the same process, and the same
ones in each run. Torch begins with other ones in each process.

`pytest --seed 7` gives other ones to all tests, also where a test sets a seed itself: bounds that fit by luck
show.
"""

from __future__ import annotations

import os
import random
import sys
import zlib

import torch

_SHIFT = "SEED_OF_TESTS"
"""The variable that tells processes of tests."""


def keep(shift: int) -> None:
    """Let each seed of this process and of those that it forks be another one, unless it is 0."""
    os.environ[_SHIFT] = str(shift)


def begin(name: str) -> None:
    """Seed Python's generator and torch's of the CPU by the name of a test, or of a module that draws numbers
    while it is imported."""
    shift = int(os.environ.get(_SHIFT, "0"))
    number = zlib.crc32(name.encode()) + shift
    random.seed(number)
    torch.default_generator.manual_seed(number)
    plain = torch.manual_seed
    if shift and plain.__module__ != __name__:
        torch.manual_seed = lambda seed: plain(int(seed) + shift)


def draw_from_nothing_imported() -> None:
    """Hypothesis takes constants from the text of all modules that are imported: it reads those of the
    project for seconds, and draws other examples as soon as one of them changes."""
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if providers is not None and hasattr(providers, "_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]
