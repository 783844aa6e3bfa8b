"""`polyfuse package`: what is in a file that `polyfuse.aot.package` wrote, whether it is undamaged, and its
parts as files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from polyfuse.aot.container import Archive
from polyfuse.aot.description import Argument, Description, Entry
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import PackageError
from polyfuse.base.text import printable

EXAMPLE = """
polyfuse package info model.pf
polyfuse package verify model.pf
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument(
        "what",
        choices=("info", "verify", "extract"),
        help="describe it, read and compare all of it, or write all of it into a folder",
    )
    parser.add_argument("file", type=Path, help="the package")
    parser.add_argument("folder", type=Path, nargs="?", help="to extract to")
    parser.add_argument(
        "--trust", action="append", metavar="KEY", help="a file with a public key that must have signed it"
    )
    parser.add_argument("--json", action="store_true", help="print what it says of itself as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Describe, verify or extract; loads neither torch nor the kernels."""
    if (arguments.what == "extract") != (arguments.folder is not None):
        raise PackageError("a folder is where `extract` writes to", "polyfuse package extract FILE FOLDER")
    with Archive(arguments.file) as archive:
        if arguments.trust:
            from polyfuse.aot.signing import check_signature

            check_signature(archive, arguments.trust)
        if arguments.folder is not None:
            written = archive.extract(arguments.folder)
            print(f"{arguments.folder}: {len(written)} files")
            return 0
        if arguments.what == "verify":
            for name in archive.members:
                archive.verify(name)
            print(f"{arguments.file}: all {len(archive.members)} members are as they were written")
        elif arguments.json:
            print(stable_json(archive.manifest))
        else:
            for line in _lines(archive):
                print(printable(line))
    return 0


def _lines(archive: Archive) -> Iterator[str]:
    found = Description.of(archive.manifest)
    made = found.versions
    yield f"{archive.path}: {archive.path.stat().st_size} bytes"
    yield f"made by Polyfuse {made['polyfuse']} with torch {made['torch']} on {found.system}, {found.machine}"
    modules = f"; modules {', '.join(found.modules)}" if found.modules else ""
    yield f"needs: {', '.join(found.devices)}{modules}"
    for name, note in sorted(found.backends.items()):
        units = sum(unit.backend == name for unit in found.units.values())
        facts = ", ".join(f"{key} {value}" for key, value in sorted(note.facts.items()) if value)
        yield f"kernels of {name}: {units} libraries; {facts}"
    inside = sum(row.bytes for row in found.weights if row.offset >= 0)
    absent = sum(row.offset < 0 for row in found.weights)
    yield f"weights: {len(found.weights)}, {inside} bytes" + (f"; {absent} to be given" if absent else "")
    for name, entry in sorted(found.entries.items()):
        yield f"entry {name}({', '.join((*entry.positional, *entry.keywords))})"
        yield from (f"  {line}" for line in _entry(entry))


def _entry(entry: Entry) -> Iterator[str]:
    yield from map(_argument, entry.arguments)
    for name, symbol in sorted(entry.symbols.items()):
        yield f"{name} in {symbol.lower or 0}..{'' if symbol.upper is None else symbol.upper}"
    yield from (f"where {text}" for text in entry.conditions)
    calls = f", calls {', '.join(entry.operators)}" if entry.operators else ""
    yield f"{len(entry.kernels)} kernels{calls}"
    yield f"without Python: {entry.native or 'no'}"


def _argument(argument: Argument) -> str:
    if argument.kind == "tensor":
        sizes = ", ".join(map(str, argument.size))
        written = ", written to" if argument.mutated else ""
        return f"{argument.name}: {argument.dtype}[{sizes}] on {argument.device}{written}"
    if argument.kind == "number":
        return f"{argument.name}: integer {argument.size[0]}"
    return f"{argument.name}: {argument.value!r}"
