"""Built kernels as models that run without Python launch them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polyfuse.plugin.host_library import DeviceCode, DeviceKernel
from polyfuse_cuda.host import host_device
from polyfuse_triton.build.artifact import Artifact, Variant, read_unit
from polyfuse_triton.launch.native import letters

_KINDS = {"p": "ptr", "i": "i32", "l": "i64"}


def host_kernels(folder: Path) -> Mapping[str, DeviceKernel]:
    """The kernels of a built folder, by key."""
    return {key: _kernel(artifact, folder) for key, artifact in read_unit(folder).items()}


def _kernel(artifact: Artifact, folder: Path) -> DeviceKernel:
    meta = artifact.meta
    names = [arg.name for arg in meta.args]
    kinds = [_KINDS.get(letter, letter) for letter in letters(meta).lower()]
    # behind its arguments, Triton's compiler gives a kernel memory for each block, and some for a profiler
    zeroed = ("zeroed",) if meta.zeroed else ()
    return DeviceKernel(
        artifact.name,
        artifact.symbol,
        host_device(),
        tuple(zip(names, kinds, strict=True)),
        (*names, *zeroed, "scratch", ""),
        meta.grid,
        tuple(_code(variant, folder) for variant in artifact.variants),
        meta.blocks,
        meta.cooperative,
        meta.guard,
        meta.zeroed,
    )


def _code(variant: Variant, folder: Path) -> DeviceCode:
    return DeviceCode(
        variant.arch,
        (folder / variant.file).read_bytes(),
        variant.num_warps * 32,
        variant.shared_bytes,
        variant.scratch_bytes,
        variant.scratch_align,
        variant.starts_early,
    )
