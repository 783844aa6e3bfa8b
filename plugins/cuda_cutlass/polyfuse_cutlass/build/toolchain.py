"""Compiling kernels: with nvcc, or where there is none with the NVRTC library that torch's CUDA wheels bring.

Runs in a build worker, without a GPU.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfuse.plugin import Source
from polyfuse_cuda import nvrtc
from polyfuse_cuda.toolchain import Compiler, run_nvcc
from polyfuse_cutlass.build.artifact import Artifact, faults_in, write_unit
from polyfuse_cutlass.build.meta import KernelMeta

_SECONDS = 120.0
_FLAGS = ("-std=c++17",)


def build_in_worker(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """Compile each source to machine code.

    Args:
        sources: kernels, with `KernelMeta` as their meta.
        folder: to fill.
        options: those of `nvcc_flags` that are set; `compiler` and `path`, as `Compiler` has them, `version`,
            and `arch`.
    """
    compiler = Compiler(str(options["compiler"]), str(options["path"]), str(options["version"]))
    made: list[Artifact] = []
    for source in {s.key: s for s in sources}.values():
        file = f"{source.key}.cubin"
        said = _compile(compiler, source, folder, file, str(options["arch"]), nvcc_flags(options))
        made.append(Artifact(source.key, source.name, source.symbol, file, source.meta, *faults_in(said)))
    write_unit(folder, made, f"{compiler.kind} {compiler.version}")


def nvcc_flags(options: Mapping[str, Any]) -> list[str]:
    """What the options of the plugin add to nvcc's commands: line numbers and symbols of the host
    (`debug`), quick functions of less precision (`fast_math`), the files between its stages (`keep`), and
    flags as the user wrote them, which stand last.
    """
    named = {"debug": ["-lineinfo", "-g"], "fast_math": ["--use_fast_math"], "keep": ["-keep"]}
    found = [flag for name, flags in named.items() if options.get(name) for flag in flags]
    return [*found, *shlex.split(str(options.get("flags", "")))]


def _compile(
    compiler: Compiler, source: Source, folder: Path, file: str, arch: str, more: Sequence[str]
) -> str:
    """Compile one source into a file of machine code; what the compiler said."""
    flags = [*_FLAGS, f"-fmad={str(KernelMeta.parse(source.meta).fuse).lower()}"]
    if compiler.kind == "nvrtc":
        code, said = nvrtc.compiled(source.rendered(), [*flags, f"-arch={arch}"], source.name)
        (folder / file).write_bytes(code)
        return said
    number = arch.removeprefix("sm_")
    target = f"-gencode=arch=compute_{number},code={arch}"
    command = [compiler.path, "-cubin", "-Xptxas", "-v", target, *flags, *more]
    return run_nvcc(command, source, folder, file, _SECONDS)
