"""What a build leaves behind: code for each kernel, and one file that says how to launch it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from polyfuse.base.digest import stable_json
from polyfuse.base.errors import KernelLoadError

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
        file: the machine code (`.cubin`), in the unit's folder.
        meta: text of its `KernelMeta`.
        spilled: bytes that a thread keeps in memory for want of registers.
        serial: whether the compiler had to make matrix instructions wait for each other.
    """

    key: str
    name: str
    symbol: str
    file: str
    meta: str
    spilled: int = 0
    serial: bool = False


def faults_in(said: str) -> tuple[int, bool]:
    """Bytes that a thread spills, and whether matrix instructions wait for each other, as a compiler says."""
    return max((int(n) for pair in _SPILLS.findall(said) for n in pair), default=0), _SERIAL in said


def write_unit(folder: Path, artifacts: Sequence[Artifact], compiler: str) -> None:
    """List the kernels whose code is in a folder. `compiler` is for people."""
    text = stable_json({"compiler": compiler, "kernels": [asdict(one) for one in artifacts]})
    (folder / _LISTING).write_text(text, encoding="utf-8")


def read_unit(folder: Path) -> Mapping[str, Artifact]:
    """The kernels of a built folder by key.

    Raises:
        KernelLoadError: the folder is damaged.
    """
    try:
        listing = json.loads((folder / _LISTING).read_text(encoding="utf-8"))
        return {item["key"]: Artifact(**item) for item in listing["kernels"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelLoadError(
            f"the built folder {folder} is damaged ({type(error).__name__}: {error})",
            "delete it from the cache and compile again",
        ) from error
