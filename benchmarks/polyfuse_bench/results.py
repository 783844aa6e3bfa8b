"""Results as JSON: one file a kind of measurement, with the machine's facts beside the rows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polyfuse.base.files import replacing
from polyfuse_bench.machine import machine

RESULTS = Path(__file__).resolve().parent.parent / "results"


def write_results(kind: str, rows: Sequence[Any], *, path: Path | None = None, **facts: Any) -> Path:
    """Write `rows` (dataclasses or plain dicts) with the machine's facts and answer where."""
    target = path or RESULTS / f"{kind}.json"
    content = {
        "kind": kind,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": dataclasses.asdict(machine()),
        **facts,
        "rows": [dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row for row in rows],
    }
    with replacing(target) as temporary:
        temporary.write_text(json.dumps(_plain(content), indent=1) + "\n")
    return target


def read_results(kind: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """What `write_results` wrote, or None where nothing was measured yet."""
    path = folder / f"{kind}.json"
    return json.loads(path.read_text()) if path.exists() else None


def finished_rows(path: Path, **facts: Any) -> tuple[list[dict[str, Any]], int]:
    """The rows of an earlier run's file that were measured, to which a run with these facts may add its own,
    and how many processes compiled them ahead.

    Raises:
        ValueError: the file is of another machine, or was measured otherwise.
    """
    content = json.loads(path.read_text())
    here = dataclasses.asdict(machine())
    for name in _SAME_MACHINE:
        if content["machine"].get(name) != _plain(here[name]):
            raise ValueError(f"{path} is of another machine: {name} was {content['machine'].get(name)}")
    for name, value in facts.items():
        if content.get(name) != _plain(value):
            raise ValueError(f"{path} was measured otherwise: {name} was {content.get(name)}")
    return [row for row in content["rows"] if row.get("timings")], content.get("ahead", 0)


_SAME_MACHINE = ("cpu", "cores", "torch", "polyfuse")
"""Facts in which two machines must agree for their rows to stand in one table."""


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
