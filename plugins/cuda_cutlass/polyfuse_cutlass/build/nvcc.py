"""Running nvcc on one kernel's source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyfuse.base.errors import KernelBuildError
from polyfuse.base.process import run_program
from polyfuse.plugin import Source

__all__ = ["run_nvcc"]


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
