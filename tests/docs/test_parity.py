"""docs/parity.md is complete, and names files and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from house.source_tree import ROOT

SECTIONS = {
    "Scheduling": [f"A{i}" for i in range(1, 58)],
    "Selection among implementations": [f"B{i}" for i in range(1, 36)],
    "Host program": [str(i) for i in range(1, 57)],
    "Helpers": [f"A{i}" for i in range(1, 24)],
    "Caches and builds": [f"B{i}" for i in range(1, 29)],
}
PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")


def rows(section: str) -> list[list[str]]:
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in found[2:] if len(row) >= 4]


@cache
def known_tests(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def test_every_entry_has_one_row() -> None:
    for section, wanted in SECTIONS.items():
        assert [row[0].strip() for row in rows(section)] == wanted, section


def test_every_row_says_how_it_is_shown_or_why_not() -> None:
    for section in SECTIONS:
        for number, _, where, why, *_ in rows(section):
            assert (
                "::test_" in why
                or ".test_" in why
                or re.search(r"^(not yet|not done|not planned|not shown|different|out of scope)", why)
            ), f"{section} {number}: {why!r}"
            if "::" in why:
                assert where or "not yet" in why, f"{section} {number} names a test but no file"


def test_named_files_and_tests_exist() -> None:
    wrong = []
    for section in SECTIONS:
        for number, _, where, why, *_ in rows(section):
            for name in re.findall(r"`([\w/.]+)`", where):
                if not any((base / name).exists() for base in (ROOT, ROOT / "core" / "polyfuse")):
                    wrong.append(f"{section} {number}: no file {name}")
            for path, name in re.findall(r"`(tests/[\w/.]+)::([\w.]+)`", why):
                if not (ROOT / path).exists() or name not in known_tests(ROOT / path):
                    wrong.append(f"{section} {number}: no test {path}::{name}")
    assert not wrong, "\n".join(wrong)
