"""`polyfuse cache`: show, clear, trim, export and import the cache folder, and compare keys of graphs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from polyfuse.base.errors import CacheError
from polyfuse.base.files import replacing
from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.cache.archive import CARRIED, pack, unpack
from polyfuse.cache.artifacts import KINDS, artifacts
from polyfuse.cache.key_fields import KeyNotes, differences
from polyfuse.cache.limit import COUNTED, trim
from polyfuse.cache.sealing import read_secret

EXAMPLE = """
polyfuse cache info                # what is stored, and how much of it
polyfuse cache graphs              # the keys of compiled graphs
polyfuse cache why abc def         # in what two of them differ, by their first characters
polyfuse cache clear               # compile everything anew
polyfuse cache export warm.pfc     # for another machine of this kind: polyfuse cache import warm.pfc
"""

# For people.
_NAMES: Final = {
    "kernels": "units of kernels",
    "compiled": "compiled graphs",
    "captures": "functions that Dynamo traced",
    "timings": "timings",
    "samples": "samples of timings",
    "checked": "kernels that agreed with the interpreter",
    "barred": "barred kernels",
}

_MIB: Final = 1 << 20

_SHOWN: Final = 12
"""Characters of a key."""


@dataclass(frozen=True)
class KindUsage:
    """What there is of one kind.

    Attributes:
        count, size: artifacts and their bytes.
        oldest: days since the one was used that was not for longest.
    """

    count: int
    size: int
    oldest: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    info = actions.add_parser("info", help="count artifacts and bytes")
    info.add_argument("--json", action="store_true", help="print JSON")
    actions.add_parser("graphs", help="list the keys of compiled graphs")
    comparing = actions.add_parser("why", help="say in what two keys of compiled graphs differ")
    comparing.add_argument("first", help="the first characters of a key")
    comparing.add_argument("second")
    clear = actions.add_parser("clear", help="remove artifacts; they are made again when needed")
    clear.add_argument(
        "--kind",
        action="append",
        choices=tuple(KINDS),
        help="only this kind; default: kernels and compiled graphs",
    )
    trimming = actions.add_parser("trim", help="remove the least recently used artifacts")
    trimming.add_argument("--limit", type=int, metavar="MIB", help="instead of the option cache_limit")
    exporting = actions.add_parser("export", help="write artifacts to one file, for another machine")
    exporting.add_argument("file", type=Path)
    exporting.add_argument("--kind", action="append", choices=CARRIED, help="only this kind; default: all")
    importing = actions.add_parser(
        "import", help="add the artifacts of such a file; they are code: import only files that you trust"
    )
    importing.add_argument("file", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked."""
    settings = Settings.resolve()
    root = cache_root(settings)
    if arguments.action == "info":
        _info(root, settings, arguments.json)
    elif arguments.action == "graphs":
        _list_graphs(root)
    elif arguments.action == "why":
        return _why(root, arguments.first, arguments.second)
    elif arguments.action == "clear":
        _clear(root, tuple(arguments.kind or COUNTED))
    elif arguments.action == "trim":
        asked = arguments.limit is not None
        _trim(root, arguments.limit if asked else settings.cache_limit or sys.maxsize >> 20)
    elif arguments.action == "export":
        _export(root, tuple(arguments.kind or CARRIED), arguments.file)
    else:
        _import(settings, arguments.file)
    return 0


def usage(root: Path) -> Mapping[str, KindUsage]:
    """What there is of each kind, by its name for people."""
    held: dict[str, KindUsage] = {}
    for kind, name in _NAMES.items():
        found = list(artifacts(root, kind))
        first = min((item.used for item in found), default=time.time())
        held[name] = KindUsage(len(found), sum(item.size for item in found), (time.time() - first) / 86400)
    return held


def _info(root: Path, settings: Settings, as_json: bool) -> None:
    found, notes = usage(root), KeyNotes(root)
    bypasses, captures = notes.bypasses(), notes.captures()
    if as_json:
        kinds = {kind: asdict(found[name]) for kind, name in _NAMES.items()}
        limit = settings.cache_limit * _MIB
        report = {"folder": str(root), "limit": limit, "kinds": kinds}
        print(json.dumps({**report, "bypasses": bypasses, "not_captured": captures}, indent=2))
        return
    print(
        f"{root}, at most {settings.cache_limit} MiB" if settings.cache_limit else f"{root}, without a limit"
    )
    for name, held in found.items():
        line = f"  {held.count} {name}"
        print(
            f"{line}, {held.size / _MIB:.1f} MiB, the oldest used {_ago(held.oldest)}" if held.count else line
        )
    _reasons("graphs bypassed the graph cache", bypasses)
    _reasons("frames are not in the capture cache", captures)


def _reasons(what: str, reasons: Mapping[str, int]) -> None:
    if reasons:
        print(f"  {sum(reasons.values())} {what}:")
    for reason, count in reasons.items():
        print(f"    {count}  {reason}")


def _ago(days: float) -> str:
    if days >= 2:
        return f"{days:.0f} days ago"
    hours = days * 24
    if hours >= 2:
        return f"{hours:.0f} hours ago"
    return f"{hours * 60:.0f} minutes ago" if hours * 60 >= 2 else "just now"


def _clear(root: Path, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        found = list(artifacts(root, kind))
        for item in found:
            item.remove()
        if kind == "compiled":
            KeyNotes(root).clear()
        print(f"{len(found)} {_NAMES[kind]} removed, {sum(item.size for item in found) / _MIB:.1f} MiB")


def _trim(root: Path, limit: int) -> None:
    done = trim(root, limit * _MIB, spared=0.0)
    print(f"{done.removed} removed, {done.freed / _MIB:.1f} MiB; {done.left / _MIB:.1f} MiB remain")


def _export(root: Path, kinds: tuple[str, ...], file: Path) -> None:
    found = (item for kind in kinds for item in artifacts(root, kind))
    try:
        with replacing(file) as temporary, open(temporary, "xb") as stream:
            count = pack(root, found, stream, read_secret(Settings.resolve().remote_key))
    except OSError as error:
        raise CacheError(f"{file} cannot be written ({error})", "name another file") from error
    print(f"{count} artifacts written to {file}, {file.stat().st_size / _MIB:.1f} MiB")


def _import(settings: Settings, file: Path) -> None:
    store = KernelStore.open(settings)
    try:
        with open(file, "rb") as stream:
            done = unpack(store.root, stream, store.add, read_secret(settings.remote_key))
    except OSError as error:
        raise CacheError(
            f"{file} cannot be added ({error})", "name a file that polyfuse cache export wrote"
        ) from error
    print(
        f"{done.added} artifacts added, {done.present} were there"
        + f", {done.damaged} damaged" * bool(done.damaged)
        + f", {done.refused} compiled graphs refused, for the option remote_key names no secret"
        * bool(done.refused)
    )


def _list_graphs(root: Path) -> None:
    """Print the keys, the last one first."""
    notes = KeyNotes(root)
    for key, when in notes.noted():
        _, fields = notes.find(key)
        operators = [line for line in fields.get("graph", "").splitlines() if line.startswith("%")]
        source = next((line.rpartition("# ")[2] for line in operators if "# " in line), "")
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
        print(f"{key[:_SHOWN]}  {at}  {len(operators)} operators  {source}")


def _why(root: Path, first: str, second: str) -> int:
    """Print in what two keys differ; the status is 1 where they are equal."""
    notes = KeyNotes(root)
    (one, its), (other, others) = notes.find(first), notes.find(second)
    found = differences(its, others)
    for item in found:
        print(f"{item.field}")
        print(f"  {one[:_SHOWN]}  {item.first or '(nothing)'}")
        print(f"  {other[:_SHOWN]}  {item.second or '(nothing)'}")
    if not found:
        print("the keys are made of the same")
    return 0 if found else 1
