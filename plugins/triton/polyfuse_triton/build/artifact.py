"""What a build leaves behind: machine code for each architecture, and one file that says how to launch it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyfuse.base.digest import stable_json
from polyfuse.base.errors import KernelLoadError
from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta

_LISTING = "kernels.json"


@dataclass(frozen=True)
class Variant:
    """A kernel's machine code for one architecture.

    Attributes:
        arch: the compute capability as a number.
        file: its name in the folder.
        shared_bytes: shared memory that a launch asks for.
        num_warps: of one program; the compiler may add some.
        registers: of one thread.
        spilled_bytes: of one thread, stored and loaded for want of registers.
        scratch_bytes, scratch_align: global memory that one program needs.
        starts_early: whether it may start while the kernel before it in its stream ends.
    """

    arch: int
    file: str
    shared_bytes: int
    num_warps: int
    registers: int
    spilled_bytes: int
    scratch_bytes: int = 0
    scratch_align: int = 1
    starts_early: bool = False


@dataclass(frozen=True)
class Artifact:
    """One built kernel.

    Attributes:
        key: of its source.
        name: for people.
        symbol: the entry point's name in the machine code, which profilers show.
        meta: how it is launched.
        variants: one for each architecture.
    """

    key: str
    name: str
    symbol: str
    meta: KernelMeta
    variants: tuple[Variant, ...]

    def variant_for(self, arch: int) -> Variant | None:
        """The code that runs on a GPU, or None.

        Code before 9.0 runs on later GPUs of the same major version; since then it uses features of one
        architecture only.
        """
        fitting = [v for v in self.variants if v.arch == arch]
        if not fitting and arch < 90:
            older = (v for v in self.variants if v.arch // 10 == arch // 10 and v.arch < arch)
            fitting = sorted(older, key=lambda v: -v.arch)
        return fitting[0] if fitting else None


def entry_name(source: Source) -> str:
    """The entry point's name: that for people, and enough of the key to tell kernels apart."""
    readable = re.sub(r"\W", "_", source.name)[:80]
    return f"k_{readable}_{source.key[:10]}"


def write_unit(folder: Path, artifacts: Sequence[Artifact], compiler: str) -> None:
    """List the kernels whose code is in a folder. `compiler` is for people."""
    kernels = [{**_plain(item), "meta": item.meta.text()} for item in artifacts]
    text = stable_json({"compiler": compiler, "kernels": kernels})
    (folder / _LISTING).write_text(text, encoding="utf-8")


def read_unit(folder: Path) -> Mapping[str, Artifact]:
    """The kernels of a built folder by key.

    Raises:
        KernelLoadError: the folder is damaged.
    """
    try:
        listing = json.loads((folder / _LISTING).read_text(encoding="utf-8"))
        return {item["key"]: _artifact(item) for item in listing["kernels"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelLoadError(
            f"the built folder {folder} is damaged ({type(error).__name__}: {error})",
            "delete it from the cache and compile again",
        ) from error


def _plain(item: Artifact) -> dict[str, object]:
    return {"key": item.key, "name": item.name, "symbol": item.symbol, "variants": item.variants}


def _artifact(item: Mapping[str, object]) -> Artifact:
    variants = item["variants"]
    assert isinstance(variants, list)
    return Artifact(
        key=str(item["key"]),
        name=str(item["name"]),
        symbol=str(item["symbol"]),
        meta=KernelMeta.parse(str(item["meta"])),
        variants=tuple(Variant(**variant) for variant in variants),
    )
