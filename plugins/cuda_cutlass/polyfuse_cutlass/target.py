"""The GPU that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings

__all__ = ["Target", "has_hopper", "target_of"]

_HOPPER = (9, 0)
_AMPERE = 8


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

    @property
    def ampere(self) -> bool:
        """Whether only CUTLASS's templates for Ampere make code for it."""
        return self.arch == "sm_80"


def target_of(settings: Settings) -> Target:
    """What to compile for: the option `cutlass.target`, or a GPU of this machine: a Hopper, or else an
    Ampere.

    Raises `BackendUnavailableError` where there is none.
    """
    named = str(settings.plugin_option("cutlass", "target", "") or "").strip()
    if named:
        if named == "sm_80":
            return Target("sm_80", 108, 40 << 20)
        if named not in ("sm_90", "sm_90a"):
            raise InvalidOptionError(
                f"option 'cutlass.target' has {named!r}, for which there are no kernels",
                "write sm_90 or sm_80",
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
    every = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    for arch, fits in (
        ("sm_90a", lambda facts: (facts.major, facts.minor) == _HOPPER),
        ("sm_80", lambda facts: facts.major == _AMPERE),
    ):
        for facts in filter(fits, every):
            cache = int(getattr(facts, "L2_cache_size", Target.l2_bytes))
            return Target(arch, facts.multi_processor_count, cache, str(facts.name))
    raise BackendUnavailableError(
        "no GPU here is a Hopper or an Ampere (compute capability 9.0 or 8)",
        "other backends compute matrix products on others",
    )


def has_hopper() -> bool:
    """Whether a GPU of this machine is a Hopper."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return any(torch.cuda.get_device_capability(index) == _HOPPER for index in range(count))
