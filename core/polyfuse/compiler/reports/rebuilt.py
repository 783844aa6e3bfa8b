"""Kernels of a dumped program, built again from the texts beside it: what a program printed with its harness
does when run as a script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.config import Config
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings, option_infos
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.runtime import harness

if TYPE_CHECKING:
    from polyfuse.compiler.kernels import Emitted
    from polyfuse.ir.kernel import Kernel
    from polyfuse.program import Program

TABLE = "kernels.json"
"""The file that says which text each kernel of a dumped program is made from, and by whom."""


def table_text(program: Program, emitted: Mapping[tuple[str, Kernel], Emitted], settings: Settings) -> str:
    """The content of `TABLE`; kernels are dumped in the order of `emitted`."""
    files = {key: f"kernel{number}.ir" for number, key in enumerate(emitted)}
    rows = []
    for entry in program.kernels:
        item = emitted[entry.backend, entry.kernel]
        config = "" if item.config is None else str(item.config)
        row = {"name": entry.name, "file": files[entry.backend, entry.kernel]}
        rows.append({**row, "backend": item.backend.name, "config": config})
    options = {
        info.name: getattr(settings, info.name)
        for info in option_infos().values()
        if info.affects_code and info.name != "plugin_options"
        if getattr(settings, info.name) != info.default
    }
    options.update(dict(settings.plugin_options))
    return json.dumps({"options": options, "kernels": rows}, indent=1) + "\n"


def main(namespace: dict[str, Any]) -> None:
    """Time the program whose module namespace this is, with its kernels built from the texts beside it."""
    table = Path(namespace["__file__"]).with_name(TABLE)
    if table.exists():
        namespace.update(_built(table))
    harness.main(namespace)


def _built(table: Path) -> dict[str, Any]:
    from polyfuse.compiler.session import session_for

    known = json.loads(table.read_text(encoding="utf-8"))
    session = session_for(Settings.resolve(None, known["options"]))
    found: dict[str, Any] = {}
    for row in known["kernels"]:
        backend = session.plugins.backend(row["backend"])
        kernel = parse_kernel(table.with_name(row["file"]).read_text(encoding="utf-8"))
        source = backend.emit(kernel, Config.parse(row["config"]) if row["config"] else None)
        outcome = session.pool.submit(backend, [source], session.store).outcomes()[source.key]
        if isinstance(outcome, PolyfuseError):
            raise outcome
        found[row["name"]] = outcome
    return found
