"""What kernels are compiled for: the architecture, and the facts about the GPU that tilings depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse_triton.launch.services import driver_version

__all__ = ["OLDEST", "Target", "driver_major", "known_target", "shared_limit", "targets_of"]

OLDEST = 80
"""The oldest compute capability, as a number of two or three digits, that kernels are made for."""
_CLUSTERS = 90
"""The oldest that starts programs in clusters."""


@dataclass(frozen=True)
class Target:
    """One kind of GPU.

    Attributes:
        arch: compute capability as a number: 90 for 9.0.
        processors: number of streaming multiprocessors.
        shared_bytes: most shared memory that one program may ask for.
        l2_bytes: size of the last cache.
        warp: threads that run in step.
        model: the chip's name; empty where none is at hand.
        clusters: whether programs can be started in clusters, on all that kernels are compiled for.
    """

    arch: int
    processors: int
    shared_bytes: int
    l2_bytes: int
    warp: int = 32
    model: str = ""
    clusters: bool = False

    @property
    def name(self) -> str:
        """As the assembler spells it."""
        return f"sm_{self.arch}"


# The largest chip of each architecture, for compiling without one at hand; shared memory is a property of the
# architecture.
_KNOWN: Mapping[int, Target] = {
    80: Target(80, 108, 166912, 40 << 20),
    86: Target(86, 84, 101376, 6 << 20),
    89: Target(89, 142, 101376, 72 << 20),
    90: Target(90, 132, 232448, 50 << 20),
    100: Target(100, 148, 232448, 126 << 20),
    103: Target(103, 148, 232448, 126 << 20),
    120: Target(120, 188, 101376, 96 << 20),
}


def known_target(name: str) -> Target:
    """The target called `sm_90` and the like, with the facts of the largest chip of that architecture."""
    text = name.strip().lower()
    digits = text.removeprefix("sm_").rstrip("af")
    if text.startswith("sm_") and digits.isdigit() and int(digits) >= OLDEST:
        arch = int(digits)
        nearest = max((known for known in _KNOWN if known <= arch), default=OLDEST)
        return replace(_KNOWN[nearest], arch=arch, clusters=arch >= _CLUSTERS)
    raise InvalidOptionError(
        f"option 'triton.target' has {name!r}, which is no architecture",
        f"write sm_{OLDEST}, sm_90 or the like, several with commas between",
    )


def targets_of(settings: Settings) -> tuple[Target, ...]:
    """What to compile for: the option `triton.target`, or the kinds of GPU in this machine, each once.

    The first is the one that tilings are chosen for. Raises `BackendUnavailableError` where there is none.
    """
    named = str(settings.plugin_option("triton", "target", "") or "")
    if named:
        found = tuple(dict.fromkeys(known_target(part) for part in named.split(",") if part.strip()))
    else:
        found = _present()
    clusters = all(target.clusters for target in found)
    return tuple(replace(target, clusters=clusters) for target in found)


def shared_limit(arch: int) -> int:
    """The most shared memory that one program may ask for on an architecture."""
    return known_target(f"sm_{arch}").shared_bytes


def driver_major() -> int:
    """The major version of CUDA that the installed driver supports; 0 without a driver.

    Asking this does not initialise the driver.
    """
    return driver_version() // 1000


def _present() -> tuple[Target, ...]:
    import torch

    if torch.version.cuda is None:
        raise BackendUnavailableError("this torch is built without CUDA", "install one that is built with it")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "no NVIDIA GPU can be used here", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    found: dict[int, Target] = {}
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        arch = facts.major * 10 + facts.minor
        if arch >= OLDEST and arch not in found:
            usual = known_target(f"sm_{arch}")
            found[arch] = Target(
                arch,
                facts.multi_processor_count,
                # names that torch gave to its properties over time
                int(getattr(facts, "shared_memory_per_block_optin", usual.shared_bytes)),
                int(getattr(facts, "L2_cache_size", usual.l2_bytes)),
                model=str(facts.name),
                clusters=arch >= _CLUSTERS,
            )
    if not found:
        raise BackendUnavailableError(
            f"every GPU here is older than compute capability {OLDEST // 10}.{OLDEST % 10}",
            "use a newer one; eager mode runs on these",
        )
    return tuple(found.values())
