"""Compiling kernels that use CUTLASS's headers: each becomes a shared object with a C interface.

Runs in a build worker, without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyfuse.base.digest import stable_json
from polyfuse.base.errors import BackendUnavailableError, KernelLoadError
from polyfuse.plugin import Source
from polyfuse_cuda.toolchain import run_nvcc
from polyfuse_cutlass.build.artifact import faults_in
from polyfuse_cutlass.templates.meta import LinkedMeta

__all__ = ["LinkedArtifact", "build_linked", "read_linked"]

_LISTING = "libraries.json"
_SECONDS = 400.0
_FLAGS = (
    *("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas", "-v"),
    *("-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"),
)


@dataclass(frozen=True)
class LinkedArtifact:
    """One built kernel.

    Attributes:
        key: of its source.
        name: for people.
        symbol: what the names of its entry points begin with.
        file: the shared object, in the unit's folder.
        meta: text of its `LinkedMeta`.
        spilled: bytes that a thread keeps in memory for want of registers.
        serial: whether the compiler had to make products wait for each other.
    """

    key: str
    name: str
    symbol: str
    file: str
    meta: str
    spilled: int = 0
    serial: bool = False


def build_linked(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """Compile each source, and list what became of it.

    Args:
        sources: kernels, with `LinkedMeta` as their meta.
        folder: to fill.
        options: `path` of nvcc and `include`, the folder of CUTLASS's headers.
    """
    made = []
    for source in sources:
        file = f"{source.key}.so"
        said = _compile(source, folder, file, options)
        spilled, serial = faults_in(said)
        made.append(
            LinkedArtifact(source.key, source.name, source.symbol, file, source.meta, spilled, serial)
        )
    text = stable_json({"libraries": [asdict(one) for one in made]})
    (folder / _LISTING).write_text(text, encoding="utf-8")


def _compile(source: Source, folder: Path, file: str, options: Mapping[str, Any]) -> str:
    if not options.get("include"):
        raise BackendUnavailableError(
            "a kernel needs the headers of CUTLASS, which are not here", "install nvidia-cutlass"
        )
    meta = LinkedMeta.parse(source.meta)
    command = [
        *(str(options["path"]), *_FLAGS, f"-fmad={'true' if meta.fuse else 'false'}"),
        *(f"-gencode={target}" for one in meta.architectures for target in _targets(one)),
        f"-I{options['include']}",
    ]
    return run_nvcc(command, source, folder, file, _SECONDS)


def _targets(architecture: str) -> list[str]:
    number = architecture.removesuffix("+")
    newer = [f"arch=compute_{number},code=compute_{number}"] if architecture.endswith("+") else []
    return [f"arch=compute_{number},code=sm_{number}", *newer]


def read_linked(folder: Path) -> Mapping[str, LinkedArtifact]:
    """The shared objects of a built folder by key."""
    path = folder / _LISTING
    if not path.exists():
        return {}
    try:
        listing = json.loads(path.read_text(encoding="utf-8"))
        return {one["key"]: LinkedArtifact(**one) for one in listing["libraries"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelLoadError(
            f"the built folder {folder} is damaged ({type(error).__name__}: {error})",
            "delete it from the cache and compile again",
        ) from error
