"""The candidates by name, and the folders each keeps its compiled code in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

EAGER = "eager"
INDUCTOR = "inductor"
POLYFUSE = "polyfuse"
# Engines outside of torch, in the campaign `engines`.
OPENVINO = "openvino"
ONNXRUNTIME = "onnxruntime"
SDPA = "sdpa"
"""torch's `scaled_dot_product_attention`, without a compiler."""
# What torch.compile costs by itself: the traced graph, run operator by operator.
DYNAMO = "dynamo"
# In place of a mode: parameters are constants, in inference.
FREEZING = "freezing"
# In place of a mode: the host program is native.
NATIVE = "native"
# In place of a mode: what Dynamo traced is stored too.
CAPTURES = "captures"
# After a mode of Inductor's and a plus sign: its CUTLASS choices take part.
CUTLASS = "cutlass"
DEFAULT_BACKENDS = (EAGER, INDUCTOR, POLYFUSE)

# Where each compiler keeps what it compiled. A cold start points every one of them at an empty folder.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "POLYFUSE_CACHE_DIR", "TRITON_CACHE_DIR")


def compiled(function: F, backend: str, *, dynamic: bool | None = False, **options: Any) -> F:
    """`function` compiled by `backend`; eager is the function itself.

    `"inductor:reduce-overhead"` names a mode too, `"inductor:freezing"` (or
    `"inductor:freezing+max-autotune"`) what treats parameters as constants, `"polyfuse:native"` what runs
    between kernels as compiled code, `"inductor:max-autotune+cutlass"` what chooses among CUTLASS's kernels
    too, and `"polyfuse@halide"` the one plugin that generates code.
    """
    if backend == EAGER:
        return function
    backend, _, mode = backend.partition(":")
    backend, _, plugin = backend.partition("@")
    if plugin and backend == INDUCTOR:
        # its own generator of that name
        options["options"] = {"cpu_backend": plugin, "cuda_backend": plugin}
    elif plugin:
        options["options"] = {**options.get("options", {}), "backends": [plugin, "interpreter"]}
    base, _, more = mode.partition("+")
    if base == FREEZING:
        # torch takes a mode or options, but not both
        wanted = _options_of(backend, more)
        options["options"] = {**options.get("options", {}), **wanted, "freezing": True}
    elif more == CUTLASS:
        from polyfuse_bench import inductor_cutlass

        inductor_cutlass.offer_sources()
        options["options"] = {**_options_of(backend, base), **inductor_cutlass.OPTIONS}
    elif mode == CAPTURES:
        options["options"] = {**options.get("options", {}), "capture_cache": True}
    elif mode == NATIVE:
        options["options"] = {**options.get("options", {}), "native_host": True}
    elif mode:
        options["mode"] = mode
    return torch.compile(function, backend=resolved(backend), dynamic=dynamic, **options)


def _options_of(backend: str, mode: str) -> Mapping[str, Any]:
    """What a mode stands for."""
    if not mode:
        return {}
    if backend == INDUCTOR:
        from torch._inductor import list_mode_options

        return dict(list_mode_options(mode))
    from polyfuse.base.settings import MODES

    return MODES[mode]


def resolved(backend: str) -> str | Callable[..., Any]:
    """The name, or Polyfuse's entry itself where the checkout is on the path without being installed."""
    if backend == DYNAMO:
        return "eager"
    if backend != POLYFUSE or POLYFUSE in torch.compiler.list_backends(exclude_tags=()):
        return backend
    from polyfuse.backend import polyfuse

    return polyfuse


def cache_environment(folder: Path) -> Mapping[str, str]:
    """The environment under which every compiler starts with (and fills) caches below `folder`."""
    return {**os.environ, **{name: str(folder / name.lower()) for name in CACHE_VARIABLES}}


@contextmanager
def empty_caches() -> Iterator[Mapping[str, str]]:
    """An environment with caches that are empty now and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as folder:
        yield cache_environment(Path(folder))
