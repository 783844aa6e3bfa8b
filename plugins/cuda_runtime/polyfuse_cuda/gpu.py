"""GPUs: what code is generated for, and tilings depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyfuse.base.errors import BackendUnavailableError

__all__ = ["OLDEST", "Gpu", "known_gpu", "present_gpus"]

OLDEST = 80
"""The oldest compute capability that kernels are made for."""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        arch: compute capability as a number: 90 for 9.0.
        multiprocessors: how many there are.
        shared_bytes: most shared memory that one block may ask for.
        l2_bytes: size of the last cache.
        model: the chip's name; empty where none is at hand.
    """

    arch: int
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int
    model: str = ""

    @property
    def name(self) -> str:
        """As assemblers spell it."""
        return f"sm_{self.arch}"


# The largest chip of each architecture, for compiling without one at hand; shared memory is a property of the
# architecture.
_KNOWN: Mapping[int, Gpu] = {
    80: Gpu(80, 108, 166912, 40 << 20),
    86: Gpu(86, 84, 101376, 6 << 20),
    89: Gpu(89, 142, 101376, 72 << 20),
    90: Gpu(90, 132, 232448, 50 << 20),
    100: Gpu(100, 148, 232448, 126 << 20),
    103: Gpu(103, 148, 232448, 126 << 20),
    120: Gpu(120, 188, 101376, 96 << 20),
}


def known_gpu(arch: int) -> Gpu:
    """The largest chip of an architecture, or of the newest one before it that is known."""
    nearest = max((known for known in _KNOWN if known <= arch), default=OLDEST)
    return replace(_KNOWN[nearest], arch=arch)


def present_gpus() -> tuple[Gpu, ...]:
    """Those of this machine, in the order of their numbers, of any age.

    Raises `BackendUnavailableError` where there is none.
    """
    import torch

    if torch.version.cuda is None:
        raise BackendUnavailableError("this torch is built without CUDA", "install one that is built with it")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "no NVIDIA GPU can be used here", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        usual = known_gpu(facts.major * 10 + facts.minor)
        found.append(
            Gpu(
                usual.arch,
                facts.multi_processor_count,
                # names that torch gave to its properties over time
                int(getattr(facts, "shared_memory_per_block_optin", usual.shared_bytes)),
                int(getattr(facts, "L2_cache_size", usual.l2_bytes)),
                str(facts.name),
            )
        )
    return tuple(found)
