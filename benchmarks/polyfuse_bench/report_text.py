"""How pages of results write tables, times and names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from polyfuse_bench.backends import DYNAMO, EAGER, INDUCTOR, POLYFUSE
from polyfuse_bench.machine import Machine

TITLES = {EAGER: "eager", DYNAMO: "Dynamo alone", INDUCTOR: "Inductor", POLYFUSE: "Polyfuse"}


def place(content: dict[str, Any]) -> str:
    """The device in a heading; nothing for the CPU."""
    return f" on {content['device_name']}" if content.get("device_name") else ""


def facts(content: dict[str, Any]) -> list[str]:
    """When and on what machine results were taken."""
    known = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content["machine"].items()
    }
    return [f"Measured {content['taken'][:10]} on {Machine(**known).summary()}.", ""]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], others: str = "--:") -> list[str]:
    """A table whose first column is aligned left and whose `others` are figures unless told otherwise."""
    rule = [":--", *(others for _ in header[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown(header, rows, ":--") if rows else ["None."]


def in_order(values: Iterable[str]) -> list[str]:
    """The distinct values in the order they first appear."""
    return list(dict.fromkeys(values))


def title(name: str) -> str:
    backend, _, mode = name.partition(":")
    backend, _, plugin = backend.partition("@")
    return " ".join(filter(None, (TITLES.get(backend, backend), plugin and f"({plugin})", mode)))


def time_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
            )
    raise AssertionError("unreachable: the last unit takes all")


def size_text(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def error_text(error: float | str | None) -> str:
    if error is None:
        return ""
    return f"{float(error):.0e}"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:160]
