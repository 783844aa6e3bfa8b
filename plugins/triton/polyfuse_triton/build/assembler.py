"""Which assembler turns PTX into machine code.

Triton brings two: an older one, and a newer one that it takes for newer architectures. Code that an assembler
of a newer major version of CUDA made may be refused by the driver; then another one is taken, where there is
one that knows the architecture. Only build workers import this: it imports Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from polyfuse.base.errors import KernelBuildError
from polyfuse.base.process import run_program
from polyfuse_cuda.toolchain import programs


def own_assembler(arch: int) -> Any:
    """The assembler that Triton takes for an architecture: an object with `path` and `version`."""
    from triton.backends.nvidia.compiler import get_ptxas

    return get_ptxas(arch)


@cache
def choose_assembler(arch: int, driver: int) -> Any:
    """The assembler for an architecture and a driver.

    Args:
        arch: the compute capability as a number.
        driver: major version of CUDA that the driver supports; 0 where it is unknown, which any will do for.

    Raises:
        KernelBuildError: what every assembler found here makes would be refused by the driver.
    """
    own = own_assembler(arch)
    if not driver or _major(own.version) <= driver:
        return own
    fitting = [tool for tool in _others() if _major(tool.version) <= driver and _knows(tool.path, arch)]
    if fitting:
        return max(fitting, key=lambda tool: tuple(map(int, tool.version.split("."))))
    raise KernelBuildError(
        f"the driver supports CUDA {driver}, and no assembler for sm_{arch} found here is that old (Triton "
        f"has {own.version})",
        "update the driver, or name a fitting ptxas in TRITON_PTXAS_BLACKWELL_PATH",
    )


def _others() -> Iterator[Any]:
    """Every assembler there is: Triton's, and those of installed toolkits."""
    from triton import knobs

    yield knobs.nvidia.ptxas
    yield knobs.nvidia.ptxas_blackwell
    for path in programs("ptxas"):
        tool = knobs.NvidiaTool.from_path(path)
        if tool is not None:
            yield tool


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _knows(path: str, arch: int) -> bool:
    """Whether an assembler lists an architecture among those that it can make code for."""
    suffix = "a" if arch >= 90 else ""
    try:
        return f"sm_{arch}{suffix}" in run_program([path, "--help"], timeout=30.0)
    except KernelBuildError:
        return False
