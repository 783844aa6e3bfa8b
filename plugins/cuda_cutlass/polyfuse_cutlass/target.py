"""The GPU that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings

__all__ = ["Target", "target_of"]

_HOPPER = (9, 0)


@dataclass(frozen=True)
class Target:
    """One kind of GPU.

    Attributes:
        arch: as the compiler spells it.
        processors: number of streaming multiprocessors.
        l2_bytes: size of the last cache.
        model: the chip's name; empty where none is at hand.
    """

    arch: str = "sm_90a"
    processors: int = 132
    l2_bytes: int = 50 << 20
    model: str = ""


def target_of(settings: Settings) -> Target:
    """What to compile for: the option `cutlass.target`, or the Hopper GPU of this machine.

    Raises `BackendUnavailableError` where there is none.
    """
    named = str(settings.plugin_option("cutlass", "target", "") or "").strip()
    if named:
        if named not in ("sm_90", "sm_90a"):
            raise InvalidOptionError(
                f"option 'cutlass.target' has {named!r}, for which there are no kernels", "write sm_90"
            )
        return Target()
    return _present()


def _present() -> Target:
    import torch

    if torch.version.cuda is None:
        raise BackendUnavailableError("this torch is built without CUDA", "install one that is built with it")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "no NVIDIA GPU can be used here", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        if (facts.major, facts.minor) == _HOPPER:
            cache = int(getattr(facts, "L2_cache_size", Target.l2_bytes))
            return Target("sm_90a", facts.multi_processor_count, cache, str(facts.name))
    raise BackendUnavailableError(
        "no GPU here is a Hopper (compute capability 9.0)", "other backends compute matrix products on others"
    )
