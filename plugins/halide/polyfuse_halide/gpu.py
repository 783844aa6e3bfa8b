"""The GPU that kernels are compiled for: its `arch` is what Halide is given, its other facts are its own."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings
from polyfuse_cuda.gpu import OLDEST, Gpu, known_gpu, present_gpus

_NEWEST = 86
"""The newest compute capability that Halide knows; later GPUs' drivers translate its code."""


def gpu_of(settings: Settings) -> Gpu | None:
    """What to compile for: the option `halide.gpu`, or this machine's GPU; None where there is none.

    Raises:
        BackendUnavailableError: Halide does not know what the option says.
    """
    named = str(settings.plugin_option("halide", "gpu", "") or "").strip()
    if named:
        digits = named.lower().removeprefix("sm_")
        if digits not in ("80", "86"):
            raise BackendUnavailableError(
                f"the option halide.gpu says {named!r}, which Halide does not know", "write 80 or 86"
            )
        return replace(known_gpu(OLDEST), arch=int(digits))
    return _present()


def _present() -> Gpu | None:
    import torch

    try:
        gpu = present_gpus()[torch.cuda.current_device()]
    except BackendUnavailableError:
        return None
    if gpu.arch < OLDEST:
        return None
    return replace(gpu, arch=_NEWEST if gpu.arch >= _NEWEST else OLDEST)
