"""The entries of a package that run without Python: what a backend needs to make a library of one."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from polyfuse.aot.description import Argument, Entry, Weight
from polyfuse.aot.weights import WEIGHTS
from polyfuse.base.errors import PackageError, PolyfuseError, UnsupportedError
from polyfuse.base.text import brief
from polyfuse.compiler.packages.entry import PackagedEntry, size_texts
from polyfuse.compiler.packages.programs import PackagedKernel
from polyfuse.compiler.session import CompileSession
from polyfuse.frontend.describe import output_args
from polyfuse.plugin import Backend, HostCall, No, Source
from polyfuse.plugin.host_library import (
    DeviceKernel,
    HostArgument,
    HostDevice,
    HostLibrary,
    HostResult,
    HostSymbol,
    HostWeight,
)
from polyfuse.program.native.lowering import native_program
from polyfuse.program.native.packed import PackedWeight, with_packed_inputs
from polyfuse.runtime.devices.registry import device_of
from polyfuse.workers import BuildFuture

NATIVE = "native"
"""The folder of a package that holds libraries and headers."""

_Loader = Callable[[Path], Mapping[str, DeviceKernel]]


@dataclass(frozen=True)
class NativeLibrary:
    """A library that was built.

    Attributes:
        member: of the package.
        files: all that goes into the package for it, by members.
    """

    member: str
    files: Mapping[str, Path]


def native_libraries(
    entries: Mapping[str, PackagedEntry], weights: Sequence[Weight], session: CompileSession
) -> dict[str, NativeLibrary]:
    """Build a library of each entry.

    Raises:
        PackageError: one needs Python; the message names what for.
        KernelBuildError: one cannot be built.
    """
    _check_weights(entries, weights)
    building: dict[str, tuple[BuildFuture, Source]] = {}
    for name, entry in entries.items():
        try:
            backend, source = _printed(_library(name, entry, weights, session), session)
        except UnsupportedError as error:
            raise PackageError(
                f"the entry {name} needs Python: {error.cause}",
                "leave out native=True, or what needs it out of the exported part of the model",
            ) from error
        building[name] = session.pool.submit(backend, [source], session.store), source
    return {name: _built(name, future, source) for name, (future, source) in building.items()}


def _check_weights(entries: Mapping[str, PackagedEntry], weights: Sequence[Weight]) -> None:
    """Refuse weights that libraries cannot have each for itself."""
    readers = Counter(position for entry in entries.values() for position in _used(entry.entry))
    for position, readers_of_it in readers.items():
        row = weights[position]
        if row.offset < 0:
            raise PackageError(
                f"without Python, weights are read from the package, and {row.name} is not in it",
                "leave out weights=False",
            )
        if row.mutable and readers_of_it > 1:
            raise PackageError(
                f"without Python, each entry has its own {row.name}, which one writes to and another reads",
                "package them one by one, or leave out native=True",
            )


def _used(entry: Entry) -> tuple[int, ...]:
    """Positions of weights that an entry reads, each once."""
    found = [source.position for source in entry.inputs if source.origin == "weight"]
    return tuple(dict.fromkeys((*found, *entry.objects.values())))


def _library(
    name: str, packaged: PackagedEntry, weights: Sequence[Weight], session: CompileSession
) -> HostLibrary:
    entry, built = packaged.entry, packaged.built
    emitted = {kernel: pending.emitted for kernel, pending in built.kernels.items()}
    kind = _device_type(packaged)
    launches = device_kernels(packaged.program.kernels, session) if kind else {}
    calls: dict[str, HostCall | None] = dict.fromkeys(emitted)
    for kernel, item in emitted.items():
        calls[kernel] = device_call(launches[kernel]) if kind else item.backend.host(item.source)
    program, packed = with_packed_inputs(built.program)
    printed = native_program(program, calls, kind)
    used = tuple(launches[kernel] for kernel in printed.kernel_names) if kind else ()
    numbers = {position: i for i, position in enumerate(_used(entry))}
    stored = tuple(_weight(weights[position]) for position in numbers)
    inputs = tuple(
        (source.origin, numbers[source.position] if source.origin == "weight" else source.position)
        for source in entry.inputs
    )
    made = tuple(_packed(stored[inputs[item.source][1]], item) for item in packed)
    return HostLibrary(
        name,
        printed,
        () if kind else tuple(emitted[kernel].source for kernel in printed.kernel_names),
        tuple(map(_argument, entry.arguments)),
        (*inputs, *(("weight", len(stored) + i) for i in range(len(made)))),
        (*stored, *made),
        {key: numbers[position] for key, position in entry.objects.items()},
        tuple(_result(i, value) for i, value in enumerate(output_args(packaged.exported.module))),
        tuple(HostSymbol(symbol, row.lower, row.upper) for symbol, row in entry.symbols.items()),
        entry.conditions,
        WEIGHTS,
        the_device(used) if kind else None,
        used,
    )


def _device_type(packaged: PackagedEntry) -> str:
    """The device on which all of an entry computes; empty: the CPU."""
    kinds = {"" if device_of(kind).is_host else kind for kind in packaged.devices}
    if len(kinds) > 1:
        raise UnsupportedError(f"it computes on {' and '.join(sorted(packaged.devices))}")
    return next(iter(kinds), "")


def _argument(row: Argument) -> HostArgument:
    return HostArgument(row.name, row.kind, row.dtype, row.size, row.stride, row.mutated)


def _weight(row: Weight) -> HostWeight:
    return HostWeight(row.name, row.dtype, row.size, row.stride, row.offset, row.bytes, row.mutable)


def _packed(weight: HostWeight, row: PackedWeight) -> HostWeight:
    return replace(weight, name=f"{weight.name} (packed)", size=row.size, stride=row.stride, packed=True)


def _result(position: int, value: Any) -> HostResult:
    name = f"result {position}"
    known = value.meta["val"] if isinstance(value, torch.fx.Node) else value
    if isinstance(known, torch.Tensor):
        dtype = str(known.dtype).removeprefix("torch.")
        return HostResult(name, "tensor", dtype, size_texts(known.shape))
    if isinstance(known, torch.SymInt):
        return HostResult(name, "number")
    if known is None:
        return HostResult(name, "none")
    if isinstance(known, (bool, int, float)):
        return HostResult(name, "value", value=known)
    raise UnsupportedError(f"the result {name} is a {type(known).__name__}")


def _printed(library: HostLibrary, session: CompileSession) -> tuple[Backend, Source]:
    """The source of a library, by the first backend that prints it."""
    reasons: list[str] = []
    for backend in session.backends("cpu"):
        source = backend.host_library(library)
        if isinstance(source, Source):
            return backend, source
        assert isinstance(source, No)
        reasons.append(f"{backend.name}: {source.reason}")
    reason = "; ".join(reasons) or "the option `backends` names none for the CPU"
    raise UnsupportedError(f"no backend makes a library of it ({reason})")


def _built(name: str, future: BuildFuture, source: Source) -> NativeLibrary:
    location = future.locations()[source.key]
    if isinstance(location, PolyfuseError):
        raise location
    files: dict[str, Path] = {}
    member = ""
    for path in sorted(location.folder.iterdir()):
        if path.name == f"{source.key}.so":
            member = f"{NATIVE}/{name}.so"
            files[member] = path
        elif path.suffix == ".h":
            files[f"{NATIVE}/{path.name}"] = path
    return NativeLibrary(member, files)


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
