"""Built folders to callables, without the code generator: what packages and the backend load kernels with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from polyfuse.base.errors import KernelLoadError
from polyfuse.runtime.launching import offer_series
from polyfuse.runtime.native import tensor_data_ptr_address
from polyfuse_cpp.bindings import load_library
from polyfuse_cpp.isa import ISAS, detect_isa, dot_instructions
from polyfuse_cpp.native_host.series import join_series

LIBRARY = "kernels.so"
KEYS = "kernels.txt"
"""Which symbol is which kernel."""


def load_folder(folder: Path, share: Callable[[], int] | None = None) -> Mapping[str, Callable[..., None]]:
    """The kernels of a built folder by key; `share` as of `KernelLibrary`.

    Raises:
        KernelLoadError: the folder is incomplete.
    """
    try:
        rows = (folder / KEYS).read_text(encoding="utf-8").split()
    except OSError as error:
        raise KernelLoadError(
            f"the built folder {folder} is incomplete ({error})",
            "delete it from the cache and compile again",
        ) from error
    offer_series("cpp", join_series)
    calls = load_library(folder / LIBRARY, tensor_data_ptr_address(), share)
    return {key: calls[symbol] for key, symbol in zip(rows[::2], rows[1::2])}


def load_packaged(folder: Path, facts: Mapping[str, str]) -> Mapping[str, Callable[..., None]]:
    """The kernels of a package, if this CPU has the instructions that they were built with.

    Raises:
        KernelLoadError: it lacks some.
    """
    name = facts["isa"].split()[0]
    lacking = set(ISAS[name].cpu_flags) - set(detect_isa().cpu_flags) if name in ISAS else {name}
    lacking |= set(facts["dots"].split()) - set(dot_instructions())
    if lacking:
        raise KernelLoadError(
            f"kernels were built for CPUs with {name}, and this one lacks {', '.join(sorted(lacking))}",
            "make the package on a machine with the same CPU",
        )
    return load_folder(folder)
