"""A backend that does what another one does, but for one planted defect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyfuse.base.digest import digest
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node
from polyfuse.plugin import Backend, Claim, Config, HostCall, Launchable, Source
from polyfuse.testing.lying.planting import Defect

_WRITTEN = "lying.json"
"""In a built folder: the positions of what each kernel writes, by key."""


class Lying(Backend):
    """`backend`, with `defect` planted in each kernel that has something for it.

    Args:
        backend: an honest one. Whatever this class does not define, it answers.
        defect: a row of `polyfuse.testing.lying.DEFECTS`.

    A kernel that is generated wrong has another key than any honest one: nothing that was found out about an
    honest kernel of equal text is taken to hold for it.
    """

    def __init__(self, backend: Backend, defect: Defect) -> None:
        super().__init__(backend.settings)
        self.honest = backend
        self.defect = defect
        self.name = backend.name
        self._written: dict[str, tuple[int, ...]] = {}

    def __getattribute__(self, name: str) -> Any:
        # not `__getattr__`: `Backend` has defaults for what the honest one may have better answers to
        if name.startswith("_") or name in _OWN:
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("honest"), name)

    def claims(self, node: Node) -> Claim:
        """What the honest backend claims."""
        return self.honest.claims(node)

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The wrong kernel's source, or the right one's where the defect finds nothing to spoil."""
        planted = self.defect.planted(kernel)
        if planted is None and self.defect.launched is None:
            return self.honest.emit(kernel, config)
        source = self.honest.emit(planted or kernel, config)
        key = digest("lying", self.defect.name, source.key)
        self._written[key] = tuple(k for k, arg in enumerate(kernel.args) if arg.kind in ("out", "inout"))
        note = f"{source.note}; " if source.note else ""
        return replace(source, key=key, note=f"{note}with a planted defect: {self.defect.name}")

    @property
    def worker(self) -> str:  # type: ignore[override]
        """Where kernels misbehave when launched, they are built here, which is where that is written down."""
        return "" if self.defect.launched is not None else self.honest.worker

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """As the honest backend builds them."""
        self.honest.build(sources, folder)
        rows = {source.key: self._written[source.key] for source in sources if source.key in self._written}
        if self.defect.launched is not None and rows:
            (folder / _WRITTEN).write_text(json.dumps(rows), encoding="utf-8")

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """The built kernels, those that misbehave when launched wrapped into what makes them."""
        found = dict(self.honest.load(folder))
        spoil = self.defect.launched
        if spoil is not None and (folder / _WRITTEN).exists():
            for key, written in json.loads((folder / _WRITTEN).read_text(encoding="utf-8")).items():
                found[key] = spoil(found[key], tuple(written))
        return found

    def host(self, source: Source) -> HostCall | None:
        """As the honest backend's, unless that would go past what misbehaves."""
        return None if self.defect.launched is not None else self.honest.host(source)

    def describe(self) -> Mapping[str, str]:
        """The honest facts, and the defect."""
        return {**self.honest.describe(), "lying": self.defect.name}


_OWN = frozenset(
    {"honest", "defect", "name", "claims", "emit", "worker", "build", "load", "host", "describe"}
)
