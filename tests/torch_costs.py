"""What torch does for its developers at each compilation, and no test needs: a quarter of the time of a small
one. Called again and again, since torch and Dynamo are imported when a test needs them.
"""

from __future__ import annotations

import logging
import os
import sys


def spare() -> None:
    """Leave out two costs, as far as torch is imported by now; nothing that a program sees changes."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None and hasattr(guards, "profile_guard_manager"):
        # empties the caches of the CPU to measure, for a log, how long guards take
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    if "torch._logging" in sys.modules and "TORCH_TRACE" not in os.environ:
        # pytest adds its handlers where records do not propagate, and torch writes its trace for any handler
        trace = logging.getLogger("torch.__trace")
        trace.propagate, trace.handlers[:] = True, []
