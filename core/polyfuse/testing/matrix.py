"""The result of the kit: pass, fail or refused in every cell, as a table and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape

from rich.console import Console
from rich.table import Table


class Status(StrEnum):
    """What became of a cell."""

    PASS = "pass"
    REFUSED = "refused"
    FAIL = "fail"


_RANK = (Status.PASS, Status.REFUSED, Status.FAIL)
_SIGN = {Status.PASS: "✓", Status.REFUSED: "–", Status.FAIL: "✗"}
_COLOUR = {Status.PASS: "green", Status.REFUSED: "yellow", Status.FAIL: "bold red"}


@dataclass(frozen=True)
class Cell:
    """One outcome, with the reason where it is not a pass, and the text of the kernel where it failed."""

    group: str
    row: str
    column: str
    status: Status
    reason: str = ""
    kernel: str = ""

    @property
    def label(self) -> str:
        """A name for people."""
        return f"{self.group}: {self.row} [{self.column}]" if self.column else f"{self.group}: {self.row}"


@dataclass(frozen=True)
class Matrix:
    """All outcomes for one backend, in the order of the kit."""

    backend: str
    cells: tuple[Cell, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a refusal is an answer."""
        return not self.failures()

    def failures(self) -> tuple[Cell, ...]:
        """The cells that failed."""
        return tuple(c for c in self.cells if c.status is Status.FAIL)

    def first_failure(self) -> Cell | None:
        """The first cell that failed and whose kernel can be run again."""
        return next((cell for cell in self.failures() if cell.kernel), None)

    def json(self) -> str:
        """All of it as JSON: the backend, its facts, counts, and a row for each cell."""
        rows = [
            {"group": c.group, "row": c.row, "column": c.column, "status": c.status, "reason": c.reason}
            for c in self.cells
        ]
        counts = {str(status): self.count(status) for status in _RANK}
        found = {"backend": self.backend, "facts": dict(self.facts), "counts": counts, "cells": rows}
        return json.dumps(found, indent=1) + "\n"

    def html(self) -> str:
        """The matrix as a page that needs nothing else; a cell's reason shows when it is pointed at."""
        lines = [_HTML_HEAD.format(escape(self.backend)), f"<p>{escape(self.summary())}</p>"]
        for group, rows in self.groups().items():
            columns = _columns(rows)
            heads = "".join(f'<th scope="col">{escape(column or "outcome")}</th>' for column in columns)
            lines += [f"<h2>{escape(group)}</h2>", f"<table><tr><td></td>{heads}</tr>"]
            for row, cells in rows.items():
                shown = "".join(_html_cell(cells.get(column)) for column in columns)
                lines.append(f'<tr><th scope="row">{escape(row)}</th>{shown}</tr>')
            lines.append("</table>")
        return "\n".join([*lines, "</body></html>"]) + "\n"

    def count(self, status: Status) -> int:
        """How many cells have a status."""
        return sum(c.status is status for c in self.cells)

    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{self.count(s)} {_WORDS[s]}" for s in _RANK)
        return f"{self.backend}: {counts}, in {self.seconds:.0f} s"

    def groups(self) -> dict[str, dict[str, dict[str, Cell]]]:
        """Cells by group, row and column; of several with the same keys the worst is retained."""
        found: dict[str, dict[str, dict[str, Cell]]] = {}
        for cell in self.cells:
            cells = found.setdefault(cell.group, {}).setdefault(cell.row, {})
            known = cells.get(cell.column)
            if known is None or _RANK.index(cell.status) > _RANK.index(known.status):
                cells[cell.column] = cell
        return found

    def print(self, console: Console) -> None:
        """Show the matrix, then each reason of refusals once, and all failures."""
        for group, rows in self.groups().items():
            columns = _columns(rows)
            table = Table(title=group, title_justify="left", box=None, pad_edge=False)
            table.add_column("")
            for column in columns:
                table.add_column(column, justify="center")
            for row, cells in rows.items():
                table.add_row(row, *(_coloured(cells.get(c)) for c in columns))
            console.print(table)
            console.print()
        reasons: dict[str, list[Cell]] = {}
        for cell in self.cells:
            if cell.status is Status.REFUSED:
                reasons.setdefault(cell.reason, []).append(cell)
        for reason, (first, *more) in reasons.items():
            others = f" and {len(more)} more" if more else ""
            self._print_reason(console, first, f"{first.label}{others}: {reason}")
        for cell in self.failures():
            self._print_reason(console, cell, f"{cell.label}: {cell.reason}")
        console.print(self.summary())

    @staticmethod
    def _print_reason(console: Console, cell: Cell, text: str) -> None:
        console.print(f"[{_COLOUR[cell.status]}]{cell.status}[/] ", end="")
        console.print(text, markup=False, highlight=False)

    def markdown(self) -> str:
        """The matrix as a section of a Markdown page; the same for the same outcomes. A group of which all is
        refused is not shown cell by cell.
        """
        lines = [f"## {self.backend}", ""]
        lines.append(", ".join(f"{self.count(s)} {_WORDS[s]}" for s in _RANK) + ".")
        refused = self._refused_groups()
        for group, rows in self.groups().items():
            columns = _columns(rows)
            lines += ["", f"### {group}", ""]
            if group in refused:
                lines.append(f"All {len(rows)} rows are refused: {'; '.join(refused[group])}.")
                continue
            lines.append("| | " + " | ".join(c or "outcome" for c in columns) + " |")
            lines.append("|---" + "|:-:" * len(columns) + "|")
            for row, cells in rows.items():
                signs = (_SIGN[cells[c].status] if c in cells else " " for c in columns)
                lines.append(f"| {row} | " + " | ".join(signs) + " |")
        reasons = [c for c in self.cells if c.status is not Status.PASS and c.group not in refused]
        if reasons:
            lines += ["", "### Reasons", ""]
            lines += [f"* {c.label}: {c.status}: {' '.join(c.reason.split())}" for c in reasons]
        return "\n".join(lines) + "\n"

    def _refused_groups(self) -> dict[str, list[str]]:
        """Groups of which nothing passed and nothing failed, with some of the reasons."""
        found: dict[str, list[str]] = {}
        for group in dict.fromkeys(cell.group for cell in self.cells):
            cells = [cell for cell in self.cells if cell.group == group]
            if all(cell.status is Status.REFUSED for cell in cells):
                reasons = list(dict.fromkeys(" ".join(cell.reason.split()) for cell in cells))
                found[group] = reasons if len(reasons) <= _REASONS else [*reasons[:_REASONS], "and others"]
        return found


_REASONS = 3
_WORDS = {Status.PASS: "passed", Status.REFUSED: "refused", Status.FAIL: "failed"}


_HTML_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Conformance of {0}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1b1b1b; background: #fff; }}
td, th {{ padding: .1rem .6rem; text-align: center; font-weight: normal; }}
th[scope=row] {{ text-align: left; }}
.pass {{ color: #0a6b2d; }} .refused {{ color: #7a5200; }} .fail {{ color: #fff; background: #b3001b; }}
</style></head><body><h1>Conformance of {0}</h1>"""


def _html_cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    words = escape(f"{cell.status}: {cell.reason}" if cell.reason else str(cell.status), quote=True)
    return f'<td class="{cell.status}" title="{words}">{_SIGN[cell.status]}</td>'


def _columns(rows: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    return list(dict.fromkeys(column for cells in rows.values() for column in cells))


def _coloured(cell: Cell | None) -> str:
    return "" if cell is None else f"[{_COLOUR[cell.status]}]{_SIGN[cell.status]}[/]"
