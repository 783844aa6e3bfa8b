"""The GPU that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings

__all__ = ["OLDEST", "Gpu", "gpu_of"]

OLDEST = 80
"""The oldest compute capability that kernels are made for."""
_NEWEST = 86
"""The newest one that Halide knows; later GPUs' drivers translate its code."""


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        capability: what Halide compiles for, as a number: 80 for 8.0.
        processors: number of streaming multiprocessors.
        l2_bytes: size of the last cache.
        model: the chip's name; empty where none is at hand.
    """

    capability: int
    processors: int = 108
    l2_bytes: int = 40 << 20
    model: str = ""

    @property
    def name(self) -> str:
        """As the assembler spells it."""
        return f"sm_{self.capability}"


def gpu_of(settings: Settings) -> Gpu | None:
    """What to compile for: the option `halide.gpu`, or this machine's GPU; None where there is none."""
    named = str(settings.plugin_option("halide", "gpu", "") or "").strip()
    if named:
        digits = named.lower().removeprefix("sm_")
        if digits not in ("80", "86"):
            raise BackendUnavailableError(
                f"the option halide.gpu says {named!r}, which Halide does not know", "write 80 or 86"
            )
        return Gpu(int(digits))
    return _present()


def _present() -> Gpu | None:
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = facts.major * 10 + facts.minor
    if arch < OLDEST:
        return None
    return Gpu(
        _NEWEST if arch >= _NEWEST else OLDEST,
        facts.multi_processor_count,
        int(getattr(facts, "L2_cache_size", 40 << 20)),
        str(facts.name),
    )
