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
    "Since the catalogue": [f"N{i}" for i in range(1, 39)],
}
MOST_WITHOUT = 8
"""Rows that may say why something is not there."""
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
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def known_tests(path: Path) -> set[str]:
    found: set[str] = set()
    for node in tree_of(path).body:
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
            if "::" in why and not why.startswith("different"):
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


def test_few_rows_say_that_something_is_not_there() -> None:
    without = [
        f"{section} {number}"
        for section in SECTIONS
        for number, _, _, why, *_ in rows(section)
        if re.match(r"not |out of scope", why) or "missing: " in why
    ]
    assert len(without) <= MOST_WITHOUT, without


@cache
def skipped_tests(path: Path) -> set[str]:
    """Tests of a file that are marked as skipped or as expected to fail, wherever they run."""
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(ast.unparse(t) == "pytestmark" for t in node.targets):
            if re.search(r"mark\.(skip|xfail)\b", ast.unparse(node.value)):
                return known_tests(path)
        for item in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if not isinstance(item, (ast.FunctionDef, ast.ClassDef)):
                continue
            if any(re.search(r"mark\.(skip|xfail)\b", ast.unparse(d)) for d in item.decorator_list):
                found.add(item.name if item is node else f"{node.name}.{item.name}")
            first = item.body[1 if ast.get_docstring(item) and len(item.body) > 1 else 0]
            if ast.unparse(first).startswith("pytest.skip("):
                found.add(item.name if item is node else f"{node.name}.{item.name}")
    return found


_INSTALLED = re.compile(
    r"""importorskip\(\s*['"](triton|halide|cryptography|hatchling|torchao)|skip\((GLOO|DISTRIBUTED)\b"""
    r"""|fake_device\.unavailable|which\(['"]g\+\+"""
)
"""Conditions that hold wherever the project is developed: its extra `dev` and a C++ compiler are there."""
_CONDITIONAL = re.compile(r"pytest\.(importorskip|skip|mark\.skipif)\(|needs_nvcc")


@cache
def conditional_tests(path: Path) -> set[str]:
    """Tests of a file that are skipped on some machines where the project is developed."""
    found: set[str] = set()
    text = path.read_text(encoding="utf-8")
    if "skip" not in text and "needs_nvcc" not in text:  # looking closer takes longer than parsing
        return found
    for node in tree_of(path).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            is_mark = not isinstance(node, ast.Assign) or ast.unparse(node).startswith("pytestmark")
            if is_mark and _may_skip(node):
                return known_tests(path)
            continue
        marked = isinstance(node, ast.ClassDef) and any(map(_may_skip, node.decorator_list))
        for item in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if isinstance(item, ast.FunctionDef) and (marked or _may_skip(item)):
                found.add(item.name if item is node else f"{node.name}.{item.name}")
    return found


def _may_skip(node: ast.AST) -> bool:
    text = ast.unparse(node)
    return bool(_CONDITIONAL.search(text)) and not _INSTALLED.search(text)


def test_a_test_of_each_row_runs_wherever_the_project_is_developed() -> None:
    wrong = []
    for section in SECTIONS:
        for number, _, _, why, *_ in rows(section):
            named = re.findall(r"`(tests/[\w/.]+)::([\w.]+)`", why)
            if named and all(name in conditional_tests(ROOT / path) for path, name in named):
                wrong.append(f"{section} {number}: every test may be skipped: {named}")
    assert not wrong, "\n".join(wrong)


def test_no_named_test_is_skipped_and_one_runs_without_a_gpu() -> None:
    wrong = []
    for section in SECTIONS:
        for number, _, _, why, *_ in rows(section):
            named = [
                (ROOT / path, name)
                for path, name in re.findall(r"`(tests/[\w/.]+)::([\w.]+)`", why)
                if (ROOT / path).exists()
            ]
            wrong += [
                f"{section} {number}: {name} is skipped"
                for path, name in named
                if name in skipped_tests(path)
            ]
            if named and all("gpu" in path.relative_to(ROOT).parts for path, _ in named):
                wrong.append(f"{section} {number}: every test needs a GPU")
    assert not wrong, "\n".join(wrong)
