"""Compiling kernels: with nvcc, or where there is none with the NVRTC library that torch's CUDA wheels bring.

Runs in a build worker, without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfuse.plugin import Source
from polyfuse_cuda import nvrtc
from polyfuse_cuda.toolchain import Compiler, run_nvcc
from polyfuse_cutlass.build.artifact import Artifact, faults_in, write_unit
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.templates.build import build_linked
from polyfuse_cutlass.templates.text import LANGUAGE

__all__ = ["build_in_worker"]

_SECONDS = 120.0
_FLAGS = ("-std=c++17",)


def build_in_worker(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """Compile each source.

    Args:
        sources: kernels, with `KernelMeta` as their meta.
        folder: to fill.
        options: `compiler` and `path`, as `Compiler` has them, `version`, and `arch`;
            `include`: the folder of CUTLASS's headers, if they are needed.
    """
    compiler = Compiler(str(options["compiler"]), str(options["path"]), str(options["version"]))
    made: list[Artifact] = []
    unique = {s.key: s for s in sources}.values()
    build_linked([s for s in unique if s.language == LANGUAGE], folder, options)
    for source in (s for s in unique if s.language != LANGUAGE):
        meta = KernelMeta.parse(source.meta)
        file = f"{source.key}.cubin"
        said = _compile(compiler, source, folder, file, str(options["arch"]), meta.fuse)
        made.append(Artifact(source.key, source.name, source.symbol, file, meta, *faults_in(said)))
    write_unit(folder, made, f"{compiler.kind} {compiler.version}")


def _compile(compiler: Compiler, source: Source, folder: Path, file: str, arch: str, fuse: bool) -> str:
    """Compile one source into a file; what the compiler said."""
    flags = [*_FLAGS, f"-fmad={'true' if fuse else 'false'}"]
    if compiler.kind == "nvrtc":
        code, said = nvrtc.compiled(source.rendered(), [*flags, f"-arch={arch}"], source.name)
        (folder / file).write_bytes(code)
        return said
    number = arch.removeprefix("sm_")
    command = [
        compiler.path,
        "-cubin",
        "-Xptxas",
        "-v",
        f"-gencode=arch=compute_{number},code={arch}",
        *flags,
    ]
    return run_nvcc(command, source, folder, file, _SECONDS)
