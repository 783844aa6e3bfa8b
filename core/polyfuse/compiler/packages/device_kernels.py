"""Built kernels of a device as libraries without Python launch them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.text import brief
from polyfuse.compiler.packages.entry import PackagedKernel
from polyfuse.compiler.session import CompileSession
from polyfuse.plugin import Backend, HostCall
from polyfuse.plugin.host_library import DeviceKernel, HostDevice

_Loader = Callable[[Path], Mapping[str, DeviceKernel]]


def device_kernels(
    kernels: Mapping[str, PackagedKernel], session: CompileSession
) -> Mapping[str, DeviceKernel]:
    """The kernels of an entry, by their names in its program.

    Raises:
        UnsupportedError: one can only be launched from Python.
    """
    loaded: dict[Path, Mapping[str, DeviceKernel]] = {}
    for name, kernel in kernels.items():
        if kernel.folder not in loaded:
            loaded[kernel.folder] = _loader(name, kernel.backend, session)(kernel.folder)
    return {name: loaded[kernel.folder][kernel.key] for name, kernel in kernels.items()}


def device_call(kernel: DeviceKernel) -> HostCall:
    """How a host program calls what launches a kernel: with addresses, and all numbers as 64 bits."""
    kinds = tuple("ptr" if kind == "ptr" else "i64" for _, kind in kernel.arguments)
    return HostCall("", kernel.symbol, kinds)


def the_device(kernels: Sequence[DeviceKernel]) -> HostDevice:
    """Where all kernels of a library run.

    Raises:
        UnsupportedError: there is no kernel, or kernels need two kinds of drivers.
    """
    devices = dict.fromkeys(kernel.device for kernel in kernels)
    if len(devices) != 1:
        raise UnsupportedError("it has no kernel" if not devices else "its kernels need two kinds of drivers")
    return next(iter(devices))


def _loader(name: str, backend: Backend, session: CompileSession) -> _Loader:
    """What a backend's manifest names for that."""
    manifest = session.plugins.state(backend.name).manifest
    import_path = manifest.host_loader if manifest is not None else ""
    if not import_path:
        raise UnsupportedError(f"the kernel {name} of the backend {backend.name!r} is launched by Python")
    module, _, attribute = import_path.partition(":")
    try:
        found: _Loader = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"the backend {backend.name!r} has no {import_path} ({brief(error)})"
        ) from error
    return found
