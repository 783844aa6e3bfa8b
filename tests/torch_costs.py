"""What torch does for its developers at each compilation, and no test needs: a quarter of the time of a small
one. Called again and again, since torch and Dynamo are imported when a test needs them.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any, Callable  # noqa: UP035  (typing remembers what it made of parameters)


def collect_seldom() -> None:
    """Look for garbage a tenth as often: a compilation makes some hundred thousand objects that live for its
    time, and walking through them takes a seventh of its time."""
    gc.set_threshold(100_000, 50, 100)


def look_at_new_objects_only(module: Any) -> None:
    """Before the first test of a module that collects garbage itself: what hundreds of tests left behind
    would be walked through each time, which takes a second. It is never collected then, so other modules do
    without."""
    if getattr(module, "gc", None) is gc and module.__name__ not in _collecting:
        _collecting.add(module.__name__)
        gc.freeze()


_collecting: set[str] = set()


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
    settings = sys.modules.get("torch._dynamo.config")
    if settings is not None:
        settings.run_gc_after_compile = False  # type: ignore[attr-defined]
    wrappers = sys.modules.get("torch._functorch._aot_autograd.runtime_wrappers")
    if wrappers is not None and hasattr(wrappers, "_AnalyzeCustomOpInputOutputMode"):
        _look_at_custom_operators_alone(wrappers._AnalyzeCustomOpInputOutputMode)
    operators = sys.modules.get("torch._ops")
    if operators is not None:
        # an exported program registers a thousand functions to decompose, each with an annotation that is
        # made anew where it is not remembered, as those of `typing` are
        operators.Callable = Callable  # type: ignore[attr-defined]
    exports = sys.modules.get("torch._export.utils")
    if exports is not None and hasattr(exports, "_materialize_cpp_cia_ops"):
        _look_for_new_operators_alone(exports)
    random = sys.modules.get("torch._decomp.decompositions_for_rng")
    if random is not None:
        _reset_without_tensors(random.PhiloxState)


def _look_at_custom_operators_alone(mode: Any) -> None:
    """The first run of a compiled graph is watched for custom operators that return their inputs: the
    operands of all operators are listed, and then only custom ones are looked at."""
    import torch
    from torch._library.utils import is_builtin

    whole = mode.__torch_dispatch__
    if whole.__module__ == __name__:
        return

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.OpOverload) and is_builtin(func):
            return func(*args, **(kwargs or {}))
        return whole(self, func, types, args, kwargs)

    mode.__torch_dispatch__ = dispatch


def _look_for_new_operators_alone(exports: Any) -> None:
    """Decomposing an exported program asks for each of all composite operators, once for each namespace."""
    import torch

    ask = exports._materialize_cpp_cia_ops
    if ask.__module__ == __name__:
        return
    count = 0

    def ask_for_more() -> None:
        nonlocal count
        known = len(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
        if known != count:
            ask()
            count = known

    exports._materialize_cpp_cia_ops = ask_for_more


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
