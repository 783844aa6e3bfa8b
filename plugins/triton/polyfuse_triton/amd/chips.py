"""AMD's GPUs that Triton compiles for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.text import join_words


@dataclass(frozen=True)
class Chip:
    """One architecture, with the facts of its largest GPU.

    Attributes:
        name: as LLVM spells it.
        model: such a GPU.
        wave: threads that run in step.
        units: compute units.
        shared_bytes: most shared memory (LDS) of a block.
        matrix: whether it has matrix instructions, and which.
    """

    name: str
    model: str
    wave: int
    units: int
    shared_bytes: int
    matrix: str


CHIPS: Final[Mapping[str, Chip]] = {
    chip.name: chip
    for chip in (
        Chip("gfx90a", "MI250X", 64, 110, 64 << 10, "MFMA"),
        Chip("gfx942", "MI300X", 64, 304, 64 << 10, "MFMA"),
        Chip("gfx950", "MI355X", 64, 256, 160 << 10, "MFMA"),
        Chip("gfx1100", "RX 7900 XTX", 32, 96, 64 << 10, "WMMA"),
        Chip("gfx1201", "RX 9070 XT", 32, 64, 64 << 10, "WMMA"),
    )
}


def chip_of(name: str) -> Chip:
    """The chip of a name; raises `InvalidOptionError` for one that is not known."""
    found = CHIPS.get(name.strip().lower())
    if found is None:
        raise InvalidOptionError(
            f"{name!r} is no GPU of AMD that is known", f"use {join_words([*CHIPS], 'or')}"
        )
    return found


def table() -> str:
    """What is known, in Markdown."""
    head = ("| architecture | such as | wave | compute units | LDS of a block | matrix instructions |",)
    rows = (
        f"| `{c.name}` | {c.model} | {c.wave} | {c.units} | {c.shared_bytes >> 10} KiB | {c.matrix} |"
        for c in CHIPS.values()
    )
    return "\n".join((*head, "|---|---|---|---|---|---|", *rows))
