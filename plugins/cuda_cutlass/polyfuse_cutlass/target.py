"""The GPU that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse_cuda.gpu import Gpu, present_gpus

_HOPPER = 90


@dataclass(frozen=True)
class Target(Gpu):
    """The kind of GPU that kernels are compiled for: a Hopper."""

    arch: int = _HOPPER
    multiprocessors: int = 132
    shared_bytes: int = 232448
    l2_bytes: int = 50 << 20
    clock: float = 1.98e9
    bandwidth: float = 3.35e12

    @property
    def name(self) -> str:
        """As compilers spell it."""
        return "sm_90a"


def target_of(settings: Settings) -> Target:
    """What to compile for: the option `cutlass.target`, or a Hopper of this machine.

    Raises:
        BackendUnavailableError: there is none.
        InvalidOptionError: the option names another architecture.
    """
    named = str(settings.plugin_option("cutlass", "target", "") or "").strip()
    if named:
        if named not in ("sm_90", "sm_90a"):
            raise InvalidOptionError(
                f"option 'cutlass.target' has {named!r}, for which there are no kernels",
                "write sm_90",
            )
        return Target()
    return _present()


def _present() -> Target:
    hopper = next((gpu for gpu in present_gpus() if gpu.arch == _HOPPER), None)
    if hopper is None:
        raise BackendUnavailableError(
            "no GPU here is a Hopper (compute capability 9.0)",
            "other backends compute matrix multiplications on others",
        )
    return Target(**vars(hopper))


def is_hopper(device: str) -> bool:
    """Whether a device is a Hopper; where there is none, kernels are compiled for one that is elsewhere."""
    import torch

    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) == (9, 0)


def has_hopper() -> bool:
    """Whether a GPU of this machine is a Hopper."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return any(torch.cuda.get_device_capability(index) == (9, 0) for index in range(count))
