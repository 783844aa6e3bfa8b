"""Where CUDA's compilers are, and running nvcc. Build workers use it, without a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyfuse.base.errors import BackendUnavailableError, KernelBuildError, PolyfuseError
from polyfuse.base.process import run_program
from polyfuse.base.settings import environment
from polyfuse.plugin import Source
from polyfuse_cuda import nvrtc


@dataclass(frozen=True)
class Compiler:
    """What compiles CUDA C++.

    Attributes:
        kind: `nvcc` or `nvrtc`.
        path: the program; empty for the library.
        version: for people and keys.
    """

    kind: str
    path: str
    version: str


def programs(name: str) -> Iterator[str]:
    """Programs of the CUDA toolkit by that name: on the search path, then in `CUDA_HOME`, in `CUDA_PATH`, and
    where the toolkit is usually installed.
    """
    found = shutil.which(name)
    if found:
        yield found
    for folder in (environment("CUDA_HOME"), environment("CUDA_PATH"), "/usr/local/cuda"):
        program = Path(folder) / "bin" / name
        if folder and program.is_file():
            yield str(program)


def find_compiler(kind: str = "") -> Compiler:
    """The compiler of a kind, or nvcc where there is one (`NVCC` or `CUDACXX` may name it), else NVRTC.

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
    named = environment("NVCC") or environment("CUDACXX")
    return (shutil.which(named) if named else None) or next(programs("nvcc"), None)


@lru_cache(maxsize=4)
def _nvcc_version(path: str) -> str:
    try:
        said = run_program([path, "--version"], timeout=30.0, name="asking nvcc for its version")
    except PolyfuseError as error:
        raise BackendUnavailableError(
            f"{path} does not run ({error.cause})", "name another in NVCC or CUDACXX"
        ) from error
    return next((line.strip() for line in said.splitlines() if " V" in line), said.strip()[-60:])


def run_nvcc(command: Sequence[str], source: Source, folder: Path, file: str, seconds: float) -> str:
    """Compile a source into a file of a folder within so many seconds; what the compiler said.

    Raises:
        KernelBuildError: with the kernel's name; the text stays in the folder then.
    """
    text = folder / f"{source.key}.cu"
    text.write_text(source.rendered(), encoding="utf-8")
    try:
        said = run_program(
            [*command, "-o", file, text.name], folder=folder, timeout=seconds, name=source.name
        )
    except KernelBuildError as error:
        raise KernelBuildError(
            error.cause, error.fix, command=error.command, output=error.output, name=source.name
        ) from error
    text.unlink()
    return said
