"""Every family by name."""

from __future__ import annotations

from polyfuse_bench.models.family import Family
from polyfuse_bench.models.text import TEXT_FAMILIES
from polyfuse_bench.models.vision import VISION_FAMILIES

FAMILIES: dict[str, Family] = {entry.name: entry for entry in (*TEXT_FAMILIES, *VISION_FAMILIES)}

# The families every report starts with: one of each architecture.
MAIN_FAMILIES = ("bert", "gpt2", "llama", "vit", "resnet", "t5", "mixtral")


def family_names() -> tuple[str, ...]:
    return tuple(FAMILIES)


def family(name: str) -> Family:
    try:
        return FAMILIES[name]
    except KeyError:
        raise ValueError(f"unknown model family {name!r}: choose one of {', '.join(FAMILIES)}") from None
