"""`polyfuse cache graphs` and `polyfuse cache why`: keys of compiled graphs, and how two of them differ."""

from __future__ import annotations

import time
from pathlib import Path

from polyfuse.cache.key_fields import KeyNotes, differences

__all__ = ["list_graphs", "why"]

_SHOWN = 12
"""Characters of a key."""


def list_graphs(root: Path) -> None:
    """Print the keys, the last one first."""
    notes = KeyNotes(root)
    for key, when in notes.noted():
        _, fields = notes.find(key)
        operators = [line for line in fields.get("graph", "").splitlines() if line.startswith("%")]
        place = next((line.rpartition("# ")[2] for line in operators if "# " in line), "")
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
        print(f"{key[:_SHOWN]}  {at}  {len(operators)} operators  {place}")


def why(root: Path, first: str, second: str) -> int:
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
