"""Tables of what collectives cost, in the cache folder: one small record for each library, device and number
of ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from polyfuse.base.digest import digest
from polyfuse.base.log import get_logger
from polyfuse.cache.records import read_record, write_record
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.costs import CollectiveCosts, known_costs, use_costs
from polyfuse.torch_compat.groups import group_of

_FOLDER: Final = "collectives"
_FORMAT: Final = "1"
_SHOWN: Final = 16

_log = get_logger("distributed")
_loaded: set[tuple[Path, str, str]] = set()
"""What was looked for in this process already."""


def read_costs(root: Path, library: str, device: str) -> list[CollectiveCosts]:
    """All tables in a cache folder of a library on a device (`Device.facts`), fewer ranks first."""
    paths = sorted(_folder(root, library, device).glob("*.json"))
    found = [CollectiveCosts.read(read_record(path)) for path in paths]
    fitting = (t for t in found if t is not None and (t.library, t.device) == (library, device))
    return sorted(fitting, key=lambda t: (t.ranks, t.on_host))


def all_costs(root: Path) -> list[CollectiveCosts]:
    """All tables in a cache folder."""
    found = (CollectiveCosts.read(read_record(path)) for path in sorted((root / _FOLDER).glob("*/*.json")))
    known = [table for table in found if table is not None]
    return sorted(known, key=lambda t: (t.library, t.device, t.ranks, t.on_host))


def write_costs(root: Path, table: CollectiveCosts) -> None:
    """Keep a table; a folder that cannot be written costs a line in the log."""
    where = "host" if table.on_host else "hosts"
    path = _folder(root, table.library, table.device) / f"{table.ranks}-{where}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, table.plain(), keep_equal=True)
    except OSError as error:
        _log.info("the costs of collectives cannot be stored: %s", error)


def load_costs(root: Path, device_types: tuple[str, ...]) -> None:
    """Have what was measured on this machine decide in this process; nothing where there is no world."""
    world = group_of()
    if world is None:
        return
    for device_type in device_types:
        try:
            library, device = world.library(device_type), device_of(device_type).facts()
        except Exception as error:  # a library or a device that is not there
            _log.debug("no costs of collectives on %s: %s", device_type, error)
            continue
        if (root, library, device) not in _loaded:
            _loaded.add((root, library, device))
            known = {(t.ranks, t.on_host) for t in known_costs(library, device)}
            tables = read_costs(root, library, device)
            use_costs(t for t in tables if (t.ranks, t.on_host) not in known)


def costs_facts(device_types: tuple[str, ...]) -> tuple[str, ...]:
    """What orders of steps depend on that follow from measured costs: for keys."""
    world, found = group_of(), list[str]()
    for device_type in device_types if world is not None else ():
        try:
            assert world is not None
            tables = known_costs(world.library(device_type), device_of(device_type).facts())
        except Exception:
            continue
        found += [f"collectives {digest(repr(table.plain()))}" for table in tables]
    return tuple(found)


def _folder(root: Path, library: str, device: str) -> Path:
    return root / _FOLDER / digest(_FORMAT, library, device)[:_SHOWN]
