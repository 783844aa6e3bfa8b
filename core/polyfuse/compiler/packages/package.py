"""Packages are made here: models that `torch.export` captured, compiled and written to one file."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, export
from torch.fx import Graph

from polyfuse.aot.container import ArchiveWriter
from polyfuse.aot.description import BackendNote, Description, Unit
from polyfuse.aot.schema import SchemaError
from polyfuse.aot.weights import WEIGHTS, write_weights
from polyfuse.base.code import version
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import InvalidOptionError, PackageError
from polyfuse.base.settings import Settings
from polyfuse.base.text import shorten
from polyfuse.cache.artifacts import CONTENTS
from polyfuse.compiler.packages.entry import PackagedEntry, compile_entry
from polyfuse.compiler.packages.native import NativeLibrary, native_libraries
from polyfuse.compiler.packages.programs import PackagedKernel
from polyfuse.compiler.packages.weights import WeightTable, lay_out_weights
from polyfuse.compiler.session import CompileSession, decided, session_for
from polyfuse.frontend.exported import ExportedGraph, functional_graph
from polyfuse.plugin import Backend
from polyfuse.runtime.devices.registry import class_name, known_devices

_DEFAULT = "forward"
_LONGEST_NAME = 180
"""Bytes of an entry's name: files are called after it."""


def package(
    model: torch.nn.Module | ExportedProgram | Mapping[str, ExportedProgram],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    path: str | PathLike[str] = "",
    *,
    dynamic_shapes: Any = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    weights: bool = True,
    modules: Sequence[str] = (),
    native: bool = False,
    sign: Any = None,
) -> Path:
    """Compile a model for inference and write it to one file, which `polyfuse.aot.load` reads.

    Args:
        model: a module, which is exported with `args` and `kwargs`; what `torch.export.export` returned; or
            several of these by the names of entries.
        args: example arguments of a module.
        kwargs: those that are given by keyword.
        path: of the file.
        dynamic_shapes: which sizes of arguments may vary, as `torch.export.export` takes it.
        options: as `torch.compile` takes them. With `freezing`, what follows from the weights alone is
            computed now and stored instead of them, and they cannot be replaced.
        mode: likewise.
        weights: whether parameters and buffers go into the file; otherwise they are given when it is loaded.
        modules: names of modules that register operators which the model calls; loading imports them.
        native: whether entries go in that run without Python and without torch, too, on the CPU. Then
            kernels compute what libraries otherwise would.
        sign: an Ed25519 private key (raw bytes, a PEM file or a key of `cryptography`) that signs the
            package, for `load(path, trust=[key])`.

    Raises:
        PackageError: something in the model cannot be put into a package, or needs Python where that should
            not be; the message names it.
        InvalidOptionError: an option is unknown, or `freezing` is set beside weights=False.
        UnsupportedError, KernelBuildError: the model cannot be compiled.
    """
    if not path:
        raise PackageError("a package needs the path of a file", "give path=")
    signed = None
    if sign is not None:
        from polyfuse.aot.signing import signer  # which needs another package

        signed = signer(sign)
    settings = _settings_of(mode, options, native, weights)
    session = session_for(settings)
    table = WeightTable(embedded=weights)
    programs = _programs(model, args, kwargs, dynamic_shapes)
    graphs = {name: _functional(program, settings, native) for name, program in programs.items()}
    taken_apart = {name for name in graphs if native and not _stay_transposed(programs[name], graphs[name])}
    last = graphs.keys() - taken_apart
    if native:
        graphs = lay_out_weights(graphs, last, session.wants_channels_last)
    written = {
        graph.tensors[item.name].data_ptr()
        for graph in graphs.values()
        for item in graph.inputs
        if item.mutated and item.name in graph.tensors
    }
    entries = {
        name: compile_entry(
            name, graph, table, session, tuple(modules), last=name in last, native=native, written=written
        )
        for name, graph in graphs.items()
    }
    libraries = native_libraries(entries, table.rows(), session) if native else {}
    target = Path(path)
    _write(target, entries, libraries, table, session, tuple(modules), signed)
    return target


def _settings_of(
    mode: str | None, options: Mapping[str, Any] | None, native: bool, weights: bool
) -> Settings:
    """The settings that packages are compiled with."""
    # host programs in packages are Python's: a native one would be built for nobody
    settings = decided(Settings.resolve(mode, options)).with_options(native_host=False)
    if native:
        # autotuning must not choose a library or a kernel of another backend
        settings = settings.with_options(gemm="generated", autotune_backends=False, keep_memory=False)
    if settings.freezing and not weights:
        raise InvalidOptionError(
            "with the option `freezing`, a package has values that follow from its weights, which"
            " weights=False leaves out",
            "leave out one of them",
        )
    return settings


def _programs(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Mapping[str, ExportedProgram]:
    if isinstance(model, torch.nn.Module):
        return {_DEFAULT: export(model, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)}
    found = {_DEFAULT: model} if isinstance(model, ExportedProgram) else model
    if not isinstance(found, Mapping) or not found:
        raise PackageError(
            f"a {type(model).__name__} cannot be packaged",
            "give a module, or what torch.export.export returned",
        )
    if args or kwargs or dynamic_shapes is not None:
        raise PackageError(
            "example arguments and dynamic shapes are part of an exported program",
            "give them to torch.export.export",
        )
    for name, program in found.items():
        if not isinstance(program, ExportedProgram):
            raise PackageError(f"the entry {name!r} is a {type(program).__name__}", "give exported programs")
        if not isinstance(name, str) or not name.isidentifier() or len(name.encode()) > _LONGEST_NAME:
            raise PackageError(
                f"{shorten(repr(name), _LONGEST_NAME)} cannot be the name of an entry",
                f"give it an identifier of at most {_LONGEST_NAME} bytes",
            )
    return found


def _functional(program: ExportedProgram, settings: Settings, native: bool) -> ExportedGraph:
    """What was captured, taken apart as far as it has to be. Without libraries, transposed convolutions of
    images stay until it is known how these lie, if that is all of them: others are taken apart into images
    with zeros in between whose layout would fix their sizes.
    """
    if native and settings.graph_rewrites and settings.fuel is None:
        graph = functional_graph(program, settings.numerics, own_kernels=True, images_later=True)
        if _stay_transposed(program, graph):
            return graph
    return functional_graph(program, settings.numerics, own_kernels=native)


def _stay_transposed(program: ExportedProgram, graph: ExportedGraph) -> bool:
    """Whether all transposed convolutions of a program are in its graph."""
    return _transposed(program.graph) == _transposed(graph.module.graph)


def _transposed(graph: Graph) -> int:
    """How many transposed convolutions there are in a graph."""
    calls = [(str(node.target), node) for node in graph.nodes if node.op == "call_function"]
    return sum(
        name.startswith("aten.conv_transpose") or (name.startswith("aten.convolution") and bool(node.args[6]))
        for name, node in calls
    )


def _write(
    path: Path,
    entries: Mapping[str, PackagedEntry],
    libraries: Mapping[str, NativeLibrary],
    table: WeightTable,
    session: CompileSession,
    modules: tuple[str, ...],
    sign: Callable[[bytes], bytes] | None,
) -> None:
    programs = [part for entry in entries.values() for part in (entry.program, *entry.program.below)]
    kernels = [k for part in programs for k in (*part.kernels.values(), *part.calls.values())]
    written = table.written()
    with ArchiveWriter.create(path) as writer:
        write_weights(writer, written)
        folders = {kernel.unit: kernel for kernel in kernels}
        units = {name: _add_unit(writer, kernel) for name, kernel in folders.items()}
        for program in programs:
            writer.add(program.member, program.text.encode())
            writer.add(program.kernels_member, program.kernel_texts.encode())
        natives = {name: file for library in libraries.values() for name, file in library.files.items()}
        for name in sorted(natives):
            content = natives[name].read_bytes()
            # as they are, so that what opens them without Python need not expand them
            writer.add_aligned(name, len(content), [content])
        devices = {device for entry in entries.values() for device in entry.devices}
        description = Description(
            {"polyfuse": version(), "torch": str(torch.__version__), "python": platform.python_version()},
            platform.system(),
            _machine(kernels),
            tuple(sorted(devices)),
            modules,
            {kernel.backend.name: _note(kernel.backend, session) for kernel in kernels},
            units,
            table.rows(),
            {
                name: replace(entry.entry, native=libraries[name].member) if libraries else entry.entry
                for name, entry in entries.items()
            },
            WEIGHTS if written else "",
            _device_classes(devices),
            session.settings.freezing,
        ).plain()
        _check_readable(description)
        writer.finish(description, sign)


def _machine(kernels: Iterable[PackagedKernel]) -> str:
    """The machine that kernels run on, which may be another one than this."""
    named = (kernel.backend.target_info("cpu").machine for kernel in kernels)
    return next(filter(None, named), platform.machine())


def _check_readable(description: Mapping[str, object]) -> None:
    """Names may hold what no loader takes: they are the user's."""
    try:
        Description.of(json.loads(stable_json(description)))
    except SchemaError as error:
        raise PackageError(
            f"the model has a name or a value that no package can hold ({shorten(str(error), 200)})",
            "rename it; a name must not contain NUL",
        ) from error


def _device_classes(device_types: Iterable[str]) -> dict[str, str]:
    """The classes that plugins brought for devices."""
    known = known_devices()
    brought = (kind for kind in sorted(device_types) if kind in known and not known[kind].is_host)
    return {kind: class_name(known[kind]) for kind in brought}


def _add_unit(writer: ArchiveWriter, kernel: PackagedKernel) -> Unit:
    """The files of a built folder, each a member."""
    folder = kernel.folder
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    # the store that it is put into lists the files anew
    files = {name: folder / name for name in names if name != CONTENTS}
    files.update(kernel.backend.extra_files())
    for name in sorted(files):
        writer.add(f"kernels/{kernel.unit}/{name}", files[name].read_bytes())
    return Unit(kernel.backend.name, tuple(sorted(files)))


def _note(backend: Backend, session: CompileSession) -> BackendNote:
    manifest = session.plugins.state(backend.name).manifest
    assert manifest is not None
    facts = {**backend.machine(), **backend.describe()}
    return BackendNote(manifest.loader, manifest.distribution, manifest.version, facts)
