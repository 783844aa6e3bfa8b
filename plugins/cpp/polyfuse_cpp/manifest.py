"""The C++ backend's manifest: what it is, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.manifest import Finding, Manifest, Offer, Requires

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.choices import Choice
    from polyfuse.plugin.fusion import FusionRule
    from polyfuse.plugin.rewriting import Rewrite
    from polyfuse.plugin.timing import Timer


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend."""
    return Manifest(
        name="cpp",
        version="0.1.0",
        distribution="polyfuse",
        api=API_VERSION,
        device_types=("cpu",),
        load="polyfuse_cpp.backend:CppBackend",
        loader="polyfuse_cpp.loading:load_packaged",
        priority={"cpu": 100},
        offers=(
            *(Offer.KERNELS, Offer.CHOICES, Offer.LOWERINGS, Offer.REWRITES),
            *(Offer.FUSION_RULES, Offer.TIMER, Offer.NATIVE_HOST),
        ),
        requires=Requires(programs=("$CXX|g++|c++|clang++",)),
        options={
            "isa": "Instruction set of the generated code: auto, avx512, avx2, sse, sve256, neon-dot, neon "
            "or scalar.",
            "flags": "Flags added to each command of the C++ compiler, behind its own: `-O3 -g`.",
            "caches": "What launches find in caches when they are timed: `cold`, the default, nothing; "
            "`warm`, their operands; `both`, the mean of the two.",
            "compiler": "Command of the C++ compiler; empty: CXX of the environment, or the first one found.",
        },
        summary="Vectorised, multithreaded C++ for the CPU, built by the compiler of the system",
    )


@hookimpl
def polyfuse_choices(device_type: str) -> Sequence[Choice]:
    """Offer the library's matmuls with what follows them."""
    if device_type != "cpu":
        return ()
    from polyfuse_cpp.onednn.choices import library_choices

    return library_choices()


@hookimpl
def polyfuse_lowerings(device_type: str) -> Mapping[str, object]:
    """Bring attention in tiles, and compute in single precision what the library gets wrong."""
    if device_type != "cpu":
        return {}
    from polyfuse_cpp.attention import flex, lowering
    from polyfuse_cpp.onednn import wrong_results

    return {**lowering.LOWERINGS, **flex.LOWERINGS, **wrong_results.LOWERINGS}


@hookimpl
def polyfuse_rewrites(device_type: str) -> Sequence[Rewrite]:
    """Cut images into patches by linear layers, and go round a fault of the library."""
    if device_type != "cpu":
        return ()
    from polyfuse_cpp.matmul import patches
    from polyfuse_cpp.onednn import wrong_results

    return (*patches.REWRITES, *wrong_results.REWRITES)


@hookimpl
def polyfuse_fusion_rules(device_type: str) -> Sequence[FusionRule]:
    """Keep kernels from running through more arrays than are prefetched."""
    if device_type != "cpu":
        return ()
    from polyfuse_cpp.fusion_rules import RULES

    return RULES


@hookimpl
def polyfuse_timer(device_type: str, backend: str, settings: Settings) -> Timer | None:
    """Time kernels on operands that are in no cache, or as the option `cpp.caches` says."""
    if device_type != "cpu" or backend != "cpp":
        return None
    from polyfuse_cpp.timing import timer_for

    return timer_for(settings)


@hookimpl
def polyfuse_doctor(settings: Settings) -> Sequence[Finding]:
    """Report on the compiler."""
    from polyfuse_cpp.doctor import findings

    return findings(settings)
