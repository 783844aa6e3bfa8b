"""From the file of a package to something to call. Nothing here imports the compiler."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from polyfuse.aot.container import Archive
from polyfuse.aot.description import BackendNote, Description, Entry, Function, Unit, programs
from polyfuse.aot.functions import called
from polyfuse.aot.launching import Launching
from polyfuse.aot.loaded import Package, Weights
from polyfuse.aot.soundness import unsoundness
from polyfuse.aot.weights import map_weights
from polyfuse.base.code import version
from polyfuse.base.digest import digest
from polyfuse.base.errors import BackendError, CacheError, KernelLoadError, PackageError
from polyfuse.base.settings import Settings
from polyfuse.base.text import brief, shorten
from polyfuse.cache.store import KernelStore
from polyfuse.runtime.devices.registry import device_of, known_devices
from polyfuse.runtime.module import CompiledModule
from polyfuse.runtime.module import load as load_program
from polyfuse.torch_compat.ops import resolve

Kernels = Mapping[str, Callable[..., Any]]


def load(
    path: str | PathLike[str],
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    verify: bool = False,
    check: str = "",
    trust: Sequence[Any] | None = None,
) -> Package:
    """Load a package, which runs code that is in it: load only what you trust.

    Args:
        path: of the file that `polyfuse.aot.package` wrote.
        constants: weights by name, instead of those in the package, or where it has none.
        verify: whether to read all weights and compare them with their digest. Everything else is compared
            anyway; weights are mapped into memory, and read when they are needed.
        check: as the option `check`, which it is if empty: `first` compares the first launch of each kernel
            with the interpreter, `all` every launch. A kernel that differs is replaced by the interpreter,
            with one warning.
        trust: Ed25519 public keys (raw bytes, PEM files or keys of `cryptography`). The package is refused
            unless one of them signed it, before anything of it is executed, and all of it is compared with
            what was signed.

    Raises:
        PackageError: the file is damaged, or made for another machine, torch or version of Polyfuse.
        KernelLoadError: kernels in it cannot be loaded here.
        InvalidOptionError: `check` is unknown.
    """
    file = Path(path)
    settings = Settings.resolve(None, {"check": check} if check else None)
    with Archive(file) as archive:
        if trust is not None:
            _check_trust(archive, trust)
        description = describe(archive)
        _check_environment(file, description)
        for name in description.modules:
            _import(name, f"the package {file} was made with the module {name}", f"install {name}")
        _check_operators(file, description)
        member = description.weight_member
        if verify and trust is None and member:
            archive.verify(member)
        weights = Weights(
            description.weights,
            map_weights(archive, member) if member else None,
            dict(constants or {}),
            description.frozen,
        )
        units = _load_units(archive, description, settings)
        every = [program for entry in description.entries.values() for program in programs(entry)]
        texts = {p.program: _text(archive, p.program) for p in every}
        made = {p.kernel_texts: archive.read(p.kernel_texts) for p in every if settings.check != "off"}
    launching = Launching(str(file), description, settings, made)

    def revive(program: Entry | Function, weights: Weights) -> CompiledModule:
        kernels = launching.kernels(program, units)
        objects: dict[str, object] = {key: weights.tensors[at] for key, at in program.objects.items()}
        objects.update(launching.calls(program, units))
        for function in program.functions:
            objects[function.key] = called(function, revive(function, weights))
        with _named_failures(file, description, program.program):
            return load_program(texts[program.program], kernels, objects)

    return Package(file, description, weights, revive)


def _check_trust(archive: Archive, trust: Sequence[Any]) -> None:
    """Refuse a package unless one of the keys signed it and all of it is what was signed."""
    from polyfuse.aot.signing import check_signature  # which needs another package

    check_signature(archive, trust)
    for name in archive.members:
        archive.verify(name)


@contextmanager
def _named_failures(file: Path, description: Description, program: str) -> Iterator[None]:
    """Have errors of loading a host program name the package and what to do."""
    try:
        yield
    except ImportError as error:
        raise PackageError(
            f"the package {file} was made by Polyfuse {description.versions['polyfuse']}, and this is"
            f" {version()} ({error})",
            "install that version, or make the package again",
        ) from error
    except Exception as error:
        raise PackageError(
            f"the program {program} of the package {file} cannot be loaded"
            f" ({type(error).__name__}: {shorten(str(error), 200)})",
            "make the package again",
        ) from error


def _text(archive: Archive, member: str) -> str:
    try:
        return archive.read(member).decode()
    except UnicodeDecodeError as error:
        raise PackageError(
            f"{member} of the package {archive.path} is no text", "make the package again"
        ) from error


def describe(archive: Archive) -> Description:
    """What a package says of itself, whose parts fit each other and the members that there are.

    Raises:
        PackageError: the description is malformed, or its parts do not fit.
    """
    try:
        found = Description.of(archive.manifest)
        problem = unsoundness(found, archive.members)
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise PackageError(
            f"the description of the package {archive.path} is malformed ({shorten(problem, 300)})",
            "make it again with polyfuse.aot.package",
        )
    return found


def _check_environment(path: Path, description: Description) -> None:
    """Compare the machine and torch with what the package was made for."""
    here = platform.system(), platform.machine()
    made = description.system, description.machine
    if description.units and here != made:
        raise PackageError(
            f"the package {path} was made for {made[0]} on {made[1]}, and this is {here[0]} on {here[1]}",
            "make it on such a machine",
        )
    torch_made, torch_here = description.versions["torch"], str(torch.__version__)
    if _release(torch_here) < _release(torch_made) or _release(torch_here)[0] != _release(torch_made)[0]:
        raise PackageError(
            f"the package {path} was made with torch {torch_made}, and this is {torch_here}",
            f"install torch {'.'.join(map(str, _release(torch_made)))} or a later one of that major version",
        )
    for device in _device_types(description):
        if not _is_available(device, description.device_classes.get(device, "")):
            raise PackageError(
                f"the package {path} computes on a device of type {device}, and there is none",
                "load it on a machine that has one",
            )


def _device_types(description: Description) -> tuple[str, ...]:
    """The types of device that a package says it needs, and those of its weights and arguments."""
    devices = [row.device for row in description.weights]
    for entry in description.entries.values():
        devices += [argument.device for argument in entry.arguments if argument.device]
    return tuple(dict.fromkeys((*description.devices, *(device.partition(":")[0] for device in devices))))


def _is_available(device: str, name: str) -> bool:
    try:
        if name and device not in known_devices():
            # what guards a plugin's code is not loaded for the host's
            from polyfuse.plugin.session.guarded_device import import_guarded

            import_guarded(device, name)
        return device_of(device).count() > 0
    except (RuntimeError, AttributeError):  # torch has no module for the type
        return False


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _check_operators(path: Path, description: Description) -> None:
    for name in sorted({name for entry in description.entries.values() for name in entry.operators}):
        try:
            resolve(name)
        except (LookupError, AttributeError, RuntimeError) as error:
            raise PackageError(
                f"the package {path} calls the operator {name}, which is not registered",
                "import the library that registers it before loading",
            ) from error


def _import(name: str, cause: str, fix: str) -> Any:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise PackageError(f"{cause}, which cannot be imported ({brief(error)})", fix) from error


def _load_units(archive: Archive, description: Description, settings: Settings) -> Mapping[str, Kernels]:
    if not description.units:
        return {}
    store = KernelStore.open(settings)
    return {
        name: _load_unit(archive, name, unit, description.backends[unit.backend], store)
        for name, unit in description.units.items()
    }


def _load_unit(archive: Archive, name: str, unit: Unit, note: BackendNote, store: KernelStore) -> Kernels:
    """The kernels of one folder, which is written to the store unless it is there."""
    members = {file: f"kernels/{name}/{file}" for file in unit.files}
    address = digest("packaged", *(f"{file} {archive.members[m].sha256}" for file, m in members.items()))

    def extract(folder: Path) -> None:
        for file, member in members.items():
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))

    read = _loader(unit.backend, note)
    try:
        return read(_folder(store, address, name, extract))
    except KernelLoadError:
        # the files may be damaged in a way that their sizes do not show
        found = store.find(address)
        if found is None:
            raise
        store.discard(found.folder)
        return read(_folder(store, address, name, extract))


def _folder(store: KernelStore, address: str, name: str, extract: Callable[[Path], None]) -> Path:
    found = store.find(address)
    if found is not None:
        return found.folder
    try:
        return store.add({address: name}, extract)
    except (CacheError, OSError):
        return KernelStore.temporary().add({address: name}, extract)


def _loader(backend: str, note: BackendNote) -> Callable[[Path], Kernels]:
    """What makes kernels of a folder: the backend's own function for that, or else the backend itself."""
    if not note.loader:
        from polyfuse.plugin import PluginManager

        try:
            return PluginManager(Settings.resolve(None, None)).backend(backend).load
        except BackendError as error:
            cause = f"its kernels are loaded by a backend that cannot be used ({error.cause})"
            raise PackageError(cause, error.fix or f"install {note.distribution} {note.version}") from error
    module, _, attribute = note.loader.partition(":")
    cause = f"kernels of the backend {backend!r} are loaded by {module}"
    found = _import(module, cause, f"install {note.distribution} {note.version} or a later one")
    function: Callable[[Path, Mapping[str, str]], Kernels] | None = getattr(found, attribute, None)
    if function is None:
        fix = f"install {note.distribution} {note.version}"
        raise PackageError(f"{cause}, which has no {attribute}", fix)

    def read(folder: Path) -> Kernels:
        try:
            return function(folder, note.facts)
        except KernelLoadError:
            raise
        except (Exception, SystemExit) as error:
            raise KernelLoadError(
                f"kernels of the backend {backend!r} cannot be loaded ({brief(error)})",
                "run `polyfuse doctor`",
            ) from error

    return read
