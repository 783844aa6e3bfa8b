"""What torch does for its developers at each compilation, and no test needs: a quarter of the time of a small
one. Called again and again, since torch and Dynamo are imported when a test needs them.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any


def collect_seldom() -> None:
    """Look for garbage a tenth as often: a compilation makes some hundred thousand objects that live for its
    time, and walking through them takes a seventh of its time."""
    gc.set_threshold(100_000, 50, 100)


def spare() -> None:
    """Leave out some costs, as far as torch is imported by now; nothing that a program sees changes."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None and hasattr(guards, "profile_guard_manager"):
        # empties the caches of the CPU to measure, for a log, how long guards take
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    if "torch._logging" in sys.modules and "TORCH_TRACE" not in os.environ:
        # pytest adds its handlers where records do not propagate, and torch writes its trace for any handler
        trace = logging.getLogger("torch.__trace")
        trace.propagate, trace.handlers[:] = True, []
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None and hasattr(utils, "_scrubbed_inductor_config_for_logging"):
        # a copy of all settings, as text, for the log of each compilation
        utils._scrubbed_inductor_config_for_logging = lambda: None  # type: ignore[attr-defined]
    tracing = sys.modules.get("torch._dynamo.symbolic_convert")
    if tracing is not None and hasattr(tracing, "get_funcname") and "TORCH_LOGS" not in os.environ:
        # splits each file that is traced into tokens, to name a function in a message for a log
        tracing.get_funcname = lambda filename, lineno: None  # type: ignore[attr-defined]
    random = sys.modules.get("torch._decomp.decompositions_for_rng")
    if random is not None:
        _reset_without_tensors(random.PhiloxState)


def _reset_without_tensors(state: Any) -> None:
    """AOTAutograd makes twelve empty tensors for each graph, under fake modes, whether or not it draws random
    numbers in it. What is made once stands for all: nothing writes to it."""
    import torch

    if state.reset.__module__ == __name__:
        return
    nothing = torch.tensor(())

    def reset(self: Any) -> None:
        self.seed = self.base_offset = nothing
        self.relative_offset = 0
        self.offset_advanced_at_least_once = False

    state.reset = reset
