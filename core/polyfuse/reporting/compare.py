"""What differs between two reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def totals(data: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of a report that are compared, in order of interest; None: not measured."""
    graphs = data["graphs"]
    steps = [step for graph in graphs for step in graph["steps"]]
    measured = [step["ms"] for step in steps if step["ms"] is not None]
    warm = data["times"]["warm"]
    memory = [graph["memory"]["peak"] for graph in graphs if graph["memory"]]
    return {
        "milliseconds of all launches and calls": sum(measured) if measured else None,
        "seconds of a cold compile": data["times"]["cold"]["total"],
        "seconds of a warm compile": None if warm is None else warm["total"],
        "bytes read and written": sum(graph["bytes_after"] for graph in graphs),
        "largest peak of memory in bytes": max(memory, default=None),
        "graphs": len(graphs),
        "graph breaks": sum(item["count"] for item in data["breaks"]),
        "recompilations": len(data["recompilations"]),
        "kernel launches": sum(graph["launches"] for graph in graphs),
        "distinct kernels": len(data["kernels"]),
        "library calls": sum(step["type"] == "call" for step in steps),
        "fallbacks": sum(len(graph["fallbacks"]) for graph in graphs),
        "refused fusions": sum(len(graph["refused"]) for graph in graphs),
    }


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The totals of both, and the kernels, fallbacks and breaks that only one of them has."""
    before, after = totals(old), totals(new)
    return {
        "old": {"title": old["title"], "machine": old["machine"]},
        "totals": [[name, before[name], after[name]] for name in after],
        "kernels": _kernels(old, new),
        "fallbacks": _only(_fallbacks(old), _fallbacks(new)),
        "breaks": _only(_breaks(old), _breaks(new)),
    }


def _uses(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """How often each kernel and call is used, and how long all its uses take, by a name that both runs give
    it: a kernel's is the digest of its text.
    """
    found: dict[str, dict[str, Any]] = {}
    for graph in data["graphs"]:
        for step in graph["steps"]:
            kernel = None if step["kernel"] is None else data["kernels"][step["kernel"]]
            key = step["name"] if kernel is None else kernel["symbol"]
            row = found.setdefault(
                key, {"name": step["name"], "backend": step["backend"], "uses": 0, "ms": None, "bytes": 0}
            )
            row["uses"] += 1
            row["bytes"] += step["bytes"]
            if step["ms"] is not None:
                row["ms"] = (row["ms"] or 0.0) + step["ms"]
    return found


def _kernels(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    before, after = _uses(old), _uses(new)
    rows = []
    for key in {**after, **before}:
        left, right = before.get(key), after.get(key)
        shown = right or left
        assert shown is not None
        state = "new" if left is None else "gone" if right is None else "same"
        rows.append(
            {"name": shown["name"], "backend": shown["backend"], "state": state, "old": left, "new": right}
        )
    order = {"new": 0, "gone": 1, "same": 2}
    return sorted(rows, key=lambda row: (order[row["state"]], -_change(row), row["name"]))


def _change(row: Mapping[str, Any]) -> float:
    old, new = row["old"], row["new"]
    return abs(((new or {}).get("ms") or 0.0) - ((old or {}).get("ms") or 0.0))


def _fallbacks(data: Mapping[str, Any]) -> list[str]:
    return [f"{item['op']}: {item['reason']}" for graph in data["graphs"] for item in graph["fallbacks"]]


def _breaks(data: Mapping[str, Any]) -> list[str]:
    return [item["reason"].splitlines()[0] for item in data["breaks"]]


def _only(old: list[str], new: list[str]) -> dict[str, list[str]]:
    return {
        "gone": [x for x in dict.fromkeys(old) if x not in new],
        "new": [x for x in dict.fromkeys(new) if x not in old],
    }
