"""The table of random programs in docs/correctness.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyfuse_bench.machine import Machine
from polyfuse_bench.report_text import markdown, text_table

__all__ = ["fuzz_table"]

_HEADER = ("backend", "device", "programs", "kernels", "not in the first configuration", "wrong", "raised")


def fuzz_table(results: Path) -> str | None:
    """What the searches on file found; None where there was none."""
    contents = [json.loads(path.read_text()) for path in sorted(results.glob("fuzz-*.json"))]
    if not contents:
        return None
    lines = [*markdown(_HEADER, [_row(content) for content in contents]), ""]
    for content in contents:
        known = {k: tuple(v) if isinstance(v, list) else v for k, v in content["machine"].items()}
        rate = f"{content['graphs_per_core_second']:.2g} programs a second of one core"
        lines.append(f"* {_name(content)}: {content['taken'][:10]}, {rate}, {Machine(**known).summary()}.")
    alike: dict[tuple[str, str], list[str]] = {}
    for content in contents:
        for row in content["rows"]:
            alike.setdefault((_name(content), _short(row["outcome"])), []).append(str(row["seed"]))
    if alike:
        lines += ["", "Seeds with a finding when these searches ran:", ""]
        rows = [(name, _seeds(seeds), finding) for (name, finding), seeds in alike.items()]
        lines += text_table(("backend", "seed", "finding"), rows)
    return "\n".join(lines) + "\n"


def _row(content: dict[str, Any]) -> tuple[str, ...]:
    outcomes = content["outcomes"]
    wrong = sum(outcomes.get(kind, 0) for kind in ("wrong", "crashed", "hung"))
    figures = (content["graphs"], content["kernels"], content["configured"], wrong, outcomes.get("raised", 0))
    backend = content["backend"]
    device = content["device_name"] or content["device"]
    if (backend, content["device"]) == ("triton", "cpu"):
        device = "Triton's interpreter"
    return (backend, device, *map(str, figures))


def _seeds(seeds: list[str]) -> str:
    return seeds[0] if len(seeds) == 1 else f"{seeds[0]} and {len(seeds) - 1} more"


def _name(content: dict[str, Any]) -> str:
    return f"`{content['backend']}` on `{content['device']}`"


def _short(text: str) -> str:
    line = text.splitlines()[0].replace("|", "/")
    return line if len(line) <= 160 else line[:157] + "..."
