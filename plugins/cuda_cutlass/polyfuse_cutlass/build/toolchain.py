"""Compiling kernels: with nvcc, or where there is none with the NVRTC library that torch's CUDA wheels bring.

Runs in a build worker, without a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyfuse.base.errors import BackendUnavailableError, PolyfuseError
from polyfuse.base.process import run_program
from polyfuse.base.settings import environment
from polyfuse.plugin import Source
from polyfuse_cutlass.build import nvrtc
from polyfuse_cutlass.build.artifact import Artifact, faults_in, write_unit
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.build.nvcc import run_nvcc
from polyfuse_cutlass.templates.build import build_linked
from polyfuse_cutlass.templates.text import LANGUAGE

__all__ = ["Compiler", "build_in_worker", "find_compiler"]

_SECONDS = 120.0
_FLAGS = ("-std=c++17",)


@dataclass(frozen=True)
class Compiler:
    """What compiles kernels.

    Attributes:
        kind: `nvcc` or `nvrtc`.
        path: the program; empty for the library.
        version: for people and keys.
    """

    kind: str
    path: str
    version: str


def find_compiler(kind: str = "") -> Compiler:
    """The compiler of a kind, or nvcc where there is one, else NVRTC.

    Raises `BackendUnavailableError` where there is neither.
    """
    path = _nvcc() if kind in ("", "nvcc") else None
    if path:
        return Compiler("nvcc", path, _nvcc_version(path))
    if kind in ("", "nvrtc"):
        version = nvrtc.version()
        if version:
            return Compiler("nvrtc", "", version)
    raise BackendUnavailableError(
        f"{kind} was not found" if kind else "neither nvcc nor NVRTC was found",
        "install the CUDA toolkit, or name its folder in CUDA_HOME",
    )


def _nvcc() -> str | None:
    for name in (environment("NVCC"), "nvcc"):
        if name and shutil.which(name):
            return shutil.which(name)
    for folder in (environment("CUDA_HOME"), environment("CUDA_PATH"), "/usr/local/cuda"):
        program = Path(folder) / "bin" / "nvcc"
        if folder and program.is_file():
            return str(program)
    return None


@lru_cache(maxsize=4)
def _nvcc_version(path: str) -> str:
    try:
        said = run_program([path, "--version"], timeout=30.0, name="asking nvcc for its version")
    except PolyfuseError as error:
        raise BackendUnavailableError(
            f"{path} does not run ({error.cause})", "name another in NVCC"
        ) from error
    return next((line.strip() for line in said.splitlines() if " V" in line), said.strip()[-60:])


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
