"""One kernel from the text of a Triton function to the code of one of AMD's GPUs. Imports Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from polyfuse.base.errors import KernelBuildError
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Source
from polyfuse_triton.amd.chips import Chip
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.build.pipeline import function_of, through_stages
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.target import known_target

_SHAPED_LIKE = "sm_80"
"""The GPU for which tilings are chosen, but for what differs: it has no clusters."""
_COLUMNS = 16
"""The fewest of a matrix instruction."""
_TRIES = 4
"""Configurations of a kernel that may need more shared memory than there is."""


@dataclass(frozen=True)
class AmdCode:
    """What the compiler made.

    Attributes:
        code: an ELF file, as HIP loads it.
        assembly: the same for people.
        shared_bytes: shared memory of a block.
    """

    code: bytes
    assembly: str
    shared_bytes: int


def compile_for(chip: Chip, kernel: Kernel) -> AmdCode:
    """Compile a kernel; it is not run.

    Raises:
        UnsupportedError: the backend has no text for this kernel.
        KernelBuildError: Triton does not compile the text for this chip, or it needs more shared memory.
    """
    target = replace(known_target(_SHAPED_LIKE), shared_bytes=chip.shared_bytes, columns=_COLUMNS)
    tried: set[str] = set()
    for config in (None, *configs(kernel, target)):
        source = emit(kernel, config, target)
        if source.key in tried:
            continue
        tried.add(source.key)
        made = _built(source, chip)
        if made.shared_bytes <= chip.shared_bytes or len(tried) == _TRIES:
            break
    if made.shared_bytes > chip.shared_bytes:
        raise KernelBuildError(
            f"kernel {source.name} needs {made.shared_bytes} bytes of shared memory, and {chip.name} has "
            f"{chip.shared_bytes}",
            "use another configuration",
            name=source.name,
        )
    return made


def _built(source: Source, chip: Chip) -> AmdCode:
    text = source.text.replace(Source.SYMBOL, source.symbol)
    try:
        return _compiled(function_of(text, source.symbol), KernelMeta.parse(source.meta), chip)
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise KernelBuildError(
            f"Triton could not compile kernel {source.name} for {chip.name} ({type(error).__name__}: "
            f"{lines[-1] if lines else 'no reason given'})",
            "the output below says why",
            output=f"{error}\n{text}",
            name=source.name,
        ) from error


def _compiled(function: Any, meta: KernelMeta, chip: Chip) -> AmdCode:
    import triton
    from triton.backends.compiler import GPUTarget

    options = {
        "num_warps": meta.num_warps,
        "num_stages": meta.num_stages,
        "enable_fp_fusion": meta.fp_fusion,
        "debug": meta.asserts,
        "sanitize_overflow": False,
    }
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        target = GPUTarget("hip", chip.name, chip.wave)
        staged = through_stages(function, meta, target, options, _modules())
    results, facts = staged.results, staged.facts
    return AmdCode(results["hsaco"], results["amdgcn"], int(facts["shared"]))


def _modules() -> Mapping[str, ModuleType]:
    """AMD's functions instead of those for NVIDIA, by the names of the modules."""
    from polyfuse_triton.device import amd

    names = (
        "triton.language.extra.libdevice",
        "triton.language.extra.cuda.libdevice",
        "polyfuse_triton.device.libdevice",
    )
    return dict.fromkeys(names, amd)
