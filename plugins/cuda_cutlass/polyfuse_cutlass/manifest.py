"""The CUTLASS backend's manifest: what it is, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.manifest import Finding, Manifest, Offer

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.choices import Choice
    from polyfuse.plugin.fusion import FusionRule
    from polyfuse.plugin.timing import Timer
    from polyfuse.runtime.devices.device import Device


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend."""
    return Manifest(
        name="cutlass",
        version="0.1.0",
        distribution="polyfuse",
        api=API_VERSION,
        device_types=("cuda",),
        load="polyfuse_cutlass.backend:CutlassBackend",
        loader="polyfuse_cutlass.loading:load_packaged",
        # behind those that compute everything: it takes what they leave, and matrix multiplications
        priority={"cuda": 50},
        offers=(Offer.KERNELS, Offer.FUSION_RULES, Offer.CHOICES, Offer.TIMER, Offer.LOWERINGS),
        specialist=True,
        options={
            "target": "`sm_90` compiles for a Hopper that is elsewhere; empty: for one of this machine.",
            "debug": "1: nvcc keeps line numbers and symbols of the host.",
            "fast_math": "1: nvcc uses quick functions of less precision (`--use_fast_math`).",
            "keep": "1: nvcc leaves PTX and the other files between its stages in the folder of a kernel.",
            "flags": "Flags added to each command of nvcc, behind all others.",
            "compiler": "`nvcc` or `nvrtc`, the compiler of kernels; empty: nvcc where there is one.",
        },
        summary="Matrix multiplications and attention for Hopper GPUs, generated as CUDA C++",
    )


@hookimpl
def polyfuse_doctor(settings: Settings) -> Sequence[Finding]:
    """Report on the GPUs and the compiler."""
    from polyfuse_cutlass.doctor import findings

    return findings(settings)


@hookimpl
def polyfuse_fusion_rules(device_type: str) -> Sequence[FusionRule]:
    """Keep epilogues of many matrices apart."""
    if device_type != "cuda":
        return ()
    from polyfuse_cutlass.fusion_rules import RULES

    return RULES


@hookimpl
def polyfuse_lowerings(device_type: str) -> Mapping[str, object]:
    """Bring the forward of flexible attention."""
    if device_type != "cuda":
        return {}
    from polyfuse_cutlass.attention.lowering import LOWERINGS

    return LOWERINGS


@hookimpl
def polyfuse_choices(device_type: str) -> Sequence[Choice]:
    """Offer matmuls of groups of rows."""
    from polyfuse_cutlass.codegen.grouped import grouped_choices

    return grouped_choices(device_type)


@hookimpl
def polyfuse_timer(device_type: str, backend: str) -> Timer | None:
    """Time GEMMs by the GPU's clock, with cold caches, however long the host takes to launch them."""
    if device_type != "cuda" or backend != "cutlass":
        return None
    from polyfuse.runtime.devices.registry import device_of
    from polyfuse_cutlass.timer import ProductTimer

    return ProductTimer(device_of("cuda"))


@hookimpl
def polyfuse_device(device_type: str) -> Device | None:
    """Answer for CUDA devices."""
    if device_type != "cuda":
        return None
    from polyfuse_cuda.device import CudaDevice

    return CudaDevice("cuda")
