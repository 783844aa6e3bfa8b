"""The Triton backend's manifest: what it is, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.manifest import Finding, Manifest, Offer, Requires

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.fusion import FusionRule
    from polyfuse.plugin.rewriting import Rewrite
    from polyfuse.plugin.timing import Timer
    from polyfuse.runtime.devices.device import Device


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend."""
    return Manifest(
        name="triton",
        version="0.1.0",
        distribution="polyfuse",
        api=API_VERSION,
        device_types=("cuda",),
        load="polyfuse_triton.backend:TritonBackend",
        loader="polyfuse_triton.launch.loading:load_packaged",
        host_loader="polyfuse_triton.launch.host:host_kernels",
        priority={"cuda": 100},
        offers=(Offer.KERNELS, Offer.LOWERINGS, Offer.FUSION_RULES, Offer.TIMER),
        requires=Requires(
            packages=("triton>=3.6,<3.10",), hardware=("an NVIDIA GPU of compute capability 8.0 or later",)
        ),
        options={
            "target": "Architectures to compile for, such as `sm_90` or `sm_80,sm_90`; empty: those of the "
            "GPUs of this machine.",
            "debug": "Keep PTX beside each kernel and line numbers in it: 1 or 0.",
            "column_reductions": "Add up columns in the kernels that reduce the same rows: 1, the default, "
            "or 0.",
            "sorted_row": "Longest row that is sorted in registers, at most 1024; the default is 64, how far "
            "that is quick to compile.",
        },
        summary="Kernels for NVIDIA GPUs, generated as Triton programs and compiled in worker processes",
    )


@hookimpl
def polyfuse_fusion_rules(device_type: str) -> Sequence[FusionRule]:
    """Keep few long rows in registers at a time."""
    if device_type != "cuda":
        return ()
    from polyfuse_triton.fusion_rules import RULES

    return RULES


@hookimpl
def polyfuse_rewrites(device_type: str) -> Sequence[Rewrite]:
    """Let the library compute activations in its matmuls' epilogues, and patches of images as matmuls."""
    if device_type != "cuda":
        return ()
    from polyfuse_triton import activations, patches

    return (*activations.REWRITES, *patches.REWRITES)


@hookimpl
def polyfuse_lowerings(device_type: str) -> Mapping[str, object]:
    """Bring flexible attention, attention of few queries, and sorting."""
    if device_type != "cuda":
        return {}
    from polyfuse_triton.attention import lowering as attention
    from polyfuse_triton.flex import lowering
    from polyfuse_triton.sort import kernel

    return {**lowering.LOWERINGS, **attention.LOWERINGS, **kernel.LOWERINGS}


@hookimpl
def polyfuse_doctor(settings: Settings) -> Sequence[Finding]:
    """Report on the GPUs, the driver, Triton and its assembler."""
    from polyfuse_triton.doctor import findings

    return findings(settings)


@hookimpl
def polyfuse_timer(device_type: str, backend: str) -> Timer | None:
    """Time kernels by the GPU's clock and with cold caches."""
    if device_type != "cuda" or backend != "triton":
        return None
    from polyfuse.plugin.timing import DeviceTimer

    return DeviceTimer("cuda")


@hookimpl
def polyfuse_device(device_type: str) -> Device | None:
    """Answer for CUDA devices."""
    if device_type != "cuda":
        return None
    from polyfuse_cuda.device import CudaDevice

    return CudaDevice("cuda")
