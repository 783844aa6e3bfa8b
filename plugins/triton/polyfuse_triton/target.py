"""What kernels are compiled for: the architecture, and the facts about the GPU that tilings depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse_cuda.driver import driver_version
from polyfuse_cuda.gpu import OLDEST, Gpu, known_gpu, present_gpus

__all__ = ["FEW_ROWS", "STREAMING", "Target", "driver_major", "first_target", "known_target", "targets_of"]

_CLUSTERS = 90
"""The oldest that starts programs in clusters."""
STREAMING = 90
"""The oldest on which matmuls of up to `FEW_ROWS` rows were measured whose weight is streamed."""
FEW_ROWS = 64


@dataclass(frozen=True)
class Target(Gpu):
    """One kind of GPU, as Triton compiles for it.

    Attributes:
        warp: threads that run in step.
        clusters: whether programs can be started in clusters, on all that kernels are compiled for.
        columns: the fewest that a matrix instruction has.
    """

    warp: int = 32
    clusters: bool = False
    columns: int = 8


def known_target(name: str) -> Target:
    """The target called `sm_90` and the like, with the facts of the largest chip of that architecture.

    Raises:
        InvalidOptionError: there is no such architecture.
    """
    text = name.strip().lower()
    digits = text.removeprefix("sm_").rstrip("af")
    if text.startswith("sm_") and digits.isdigit() and int(digits) >= OLDEST:
        return _target(known_gpu(int(digits)))
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


def first_target(settings: Settings) -> Target:
    """What tilings are chosen for; a large chip where there is none."""
    try:
        return targets_of(settings)[0]
    except BackendUnavailableError:
        return known_target("sm_90")


def driver_major() -> int:
    """The major version of CUDA that the installed driver supports; 0 without a driver.

    Asking this does not initialise the driver.
    """
    return driver_version() // 1000


def _present() -> tuple[Target, ...]:
    found: dict[int, Target] = {}
    for gpu in present_gpus():
        if gpu.arch >= OLDEST and gpu.arch not in found:
            found[gpu.arch] = _target(gpu)
    if not found:
        raise BackendUnavailableError(
            f"every GPU here is older than compute capability {OLDEST // 10}.{OLDEST % 10}",
            "use a newer one; eager mode runs on these",
        )
    return tuple(found.values())


def _target(gpu: Gpu) -> Target:
    return Target(**vars(gpu), clusters=gpu.arch >= _CLUSTERS)
