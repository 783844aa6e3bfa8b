"""The Halide backend's manifest: what it is, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.manifest import Finding, Manifest, Offer, Requires

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.fusion import FusionRule
    from polyfuse.plugin.timing import Timer
    from polyfuse.runtime.devices.device import Device


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend."""
    return Manifest(
        name="halide",
        version="0.1.0",
        distribution="polyfuse",
        api=API_VERSION,
        device_types=("cpu", "cuda"),
        load="polyfuse_halide.backend:HalideBackend",
        loader="polyfuse_halide.loading:load_packaged",
        priority={"cpu": 90},
        offers=(Offer.KERNELS, Offer.FUSION_RULES, Offer.TIMER),
        requires=Requires(packages=("halide>=21,<22",), hardware=("Linux on x86-64",)),
        options={
            "target": "What to compile for, as Halide writes it; empty: this machine's CPU.",
            "gpu": "The compute capability to compile for, 80 or 86; empty: that of this machine's GPU.",
            "schedule": "Choices of the schedule for every kernel, such as `lanes=8 unroll=2`; empty: each "
            "kernel's own.",
            "pins": "A file with lines that `polyfuse explain` printed, `schedule`, a kernel, its choices: "
            "these kernels are computed as it says.",
            "autoscheduler": "One of Halide's own schedulers, Mullapudi2016, Adams2019 or Li2018, on devices "
            "Anderson2021, which is asked about kernels of known sizes; empty: this backend's schedules.",
            "checks": "Kernels for the CPU look at each index before they read or write it, and raise "
            "where it is outside: 1 or 0.",
            "keep": "Keep the loops and the assembly that Halide makes beside each kernel: 1 or 0.",
        },
        summary="Kernels for CPUs and NVIDIA GPUs as Halide pipelines, without a system's compiler",
    )


@hookimpl
def polyfuse_fusion_rules(device_type: str) -> Sequence[FusionRule]:
    """Keep loops apart that one schedule cannot serve."""
    if device_type != "cpu":
        return ()
    from polyfuse_halide.fusion_rules import RULES

    return RULES


@hookimpl
def polyfuse_timer(device_type: str, backend: str) -> Timer | None:
    """Time kernels with cold caches, those for GPUs by the GPU's clock."""
    if backend != "halide" or device_type not in ("cpu", "cuda"):
        return None
    from polyfuse.plugin.timing import DeviceTimer, HostTimer, cache_bytes

    return DeviceTimer("cuda") if device_type == "cuda" else HostTimer(cold_bytes=3 * cache_bytes() // 2)


@hookimpl
def polyfuse_doctor(settings: Settings) -> Sequence[Finding]:
    """Report on Halide and on what launches its kernels."""
    from polyfuse_halide.doctor import findings

    return findings(settings)


@hookimpl
def polyfuse_device(device_type: str) -> Device | None:
    """Answer for CUDA devices."""
    if device_type != "cuda":
        return None
    from polyfuse_cuda.device import CudaDevice

    return CudaDevice("cuda")
