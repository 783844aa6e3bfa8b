"""What a build leaves behind: machine code for each kernel, and one file that says how to launch it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyfuse.base.digest import stable_json
from polyfuse.base.errors import KernelLoadError
from polyfuse_cutlass.build.meta import KernelMeta

__all__ = ["Artifact", "faults_in", "read_unit", "write_unit"]

_LISTING = "kernels.json"
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SERIAL = "wgmma.mma_async instructions are serialized"


@dataclass(frozen=True)
class Artifact:
    """One built kernel.

    Attributes:
        key: of its source.
        name: for people.
        symbol: the entry point's name in the machine code.
        file: the machine code, in the unit's folder.
        meta: how it is launched.
        spilled: bytes that a thread keeps in memory for want of registers.
        serial: whether the compiler had to make products wait for each other.
    """

    key: str
    name: str
    symbol: str
    file: str
    meta: KernelMeta
    spilled: int = 0
    serial: bool = False


def faults_in(said: str) -> tuple[int, bool]:
    """What a compiler found: bytes that a thread spills, and whether products wait for each other."""
    return max((int(n) for pair in _SPILLS.findall(said) for n in pair), default=0), _SERIAL in said


def write_unit(folder: Path, artifacts: Sequence[Artifact], compiler: str) -> None:
    """List the kernels whose code is in a folder. `compiler` is for people."""
    kernels = [
        {
            "key": one.key,
            "name": one.name,
            "symbol": one.symbol,
            "file": one.file,
            "meta": one.meta.text(),
            "spilled": one.spilled,
            "serial": one.serial,
        }
        for one in artifacts
    ]
    text = stable_json({"compiler": compiler, "kernels": kernels})
    (folder / _LISTING).write_text(text, encoding="utf-8")


def read_unit(folder: Path) -> Mapping[str, Artifact]:
    """The kernels of a built folder by key."""
    try:
        listing = json.loads((folder / _LISTING).read_text(encoding="utf-8"))
        return {
            item["key"]: Artifact(**{**item, "meta": KernelMeta.parse(item["meta"])})
            for item in listing["kernels"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelLoadError(
            f"the built folder {folder} is damaged ({type(error).__name__}: {error})",
            "delete it from the cache and compile again",
        ) from error
