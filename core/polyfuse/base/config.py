"""A configuration of a kernel: tile sizes, warps, stages, and whatever else a code generator may choose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """The parameters of one tiling of a kernel: named integers, in the order in which they print."""

    values: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(**values: int) -> Config:
        """Make a configuration from keywords."""
        return Config(tuple(values.items()))

    @staticmethod
    def parse(text: str) -> Config:
        """Read what `str` wrote; raises `ValueError` for anything else."""
        pairs = (part.partition("=") for part in text.split())
        return Config(tuple((name, int(value)) for name, _, value in pairs))

    def get(self, name: str, default: int = 0) -> int:
        """Return one value."""
        return dict(self.values).get(name, default)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)
