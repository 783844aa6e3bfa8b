"""The GPU that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse_cuda.gpu import Gpu, known_gpu, present_gpus

_HOPPER = 90


@dataclass(frozen=True)
class Target(Gpu):
    """One kind of GPU, as CUTLASS compiles for it: a Hopper, or an Ampere, of which all are taken for 8.0."""

    arch: int = _HOPPER
    multiprocessors: int = 132
    shared_bytes: int = 232448
    l2_bytes: int = 50 << 20
    clock: float = 1.98e9
    bandwidth: float = 3.35e12

    @property
    def name(self) -> str:
        """As compilers spell it."""
        return "sm_80" if self.ampere else "sm_90a"

    @property
    def ampere(self) -> bool:
        """Whether only CUTLASS's templates for Ampere make code for it."""
        return self.arch < _HOPPER


def target_of(settings: Settings) -> Target:
    """What to compile for: the option `cutlass.target`, or a GPU of this machine: a Hopper, or else an
    Ampere.

    Raises:
        BackendUnavailableError: there is none.
        InvalidOptionError: the option names another architecture.
    """
    named = str(settings.plugin_option("cutlass", "target", "") or "").strip()
    if named:
        if named == "sm_80":
            return Target(**vars(known_gpu(80)))
        if named not in ("sm_90", "sm_90a"):
            raise InvalidOptionError(
                f"option 'cutlass.target' has {named!r}, for which there are no kernels",
                "write sm_90 or sm_80",
            )
        return Target()
    return _present()


def _present() -> Target:
    every = present_gpus()
    hopper = [gpu for gpu in every if gpu.arch == _HOPPER]
    ampere = [gpu for gpu in every if gpu.arch // 10 == 8]
    if not hopper + ampere:
        raise BackendUnavailableError(
            "no GPU here is a Hopper or an Ampere (compute capability 9.0 or 8)",
            "other backends compute matrix multiplications on others",
        )
    return Target(**vars((hopper + ampere)[0]))


def is_hopper(device: str) -> bool:
    """Whether a device is a Hopper; where there is none, kernels are compiled for one that is elsewhere."""
    import torch

    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) == (9, 0)


def has_hopper() -> bool:
    """Whether a GPU of this machine is a Hopper."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return any(torch.cuda.get_device_capability(index) == (9, 0) for index in range(count))
