"""How big a thing may become. Split by concept; if the concept has no name, the design is not finished."""

from __future__ import annotations

import ast
from collections import Counter

from house.source_tree import ROOT, all_files, nodes_of

MAX_FILE, MAX_FUNCTION, MAX_METHODS = 500, 80, 25
LISTS = {"core/polyfuse/base/settings.py": 600}
"""Modules that are one list, and how long these may be."""
MAX_FOLDER = 15
"""Modules of a folder, without its `__init__`."""


def test_files():
    wrong = [
        f"{file.location} has {count} lines"
        for file in all_files()
        if (count := file.text.count("\n")) > LISTS.get(file.location, MAX_FILE)
    ]
    assert not wrong, "\n".join(wrong)


def test_folders():
    counts = Counter(
        file.path.parent.relative_to(ROOT) for file in all_files() if file.path.name != "__init__.py"
    )
    wrong = [f"{f} holds {n} modules" for f, n in counts.items() if n > MAX_FOLDER]
    assert not wrong, "\n".join(wrong)


def test_functions():
    wrong = [
        f"{file.location}:{node.lineno} {node.name} has {length} lines"
        for file in all_files()
        for node in nodes_of(file.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION
    ]
    assert not wrong, "\n".join(wrong)


def test_classes():
    wrong = []
    for file in all_files():
        for node in nodes_of(file.tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) for item in node.body)
                if methods > MAX_METHODS:
                    wrong.append(f"{file.location}:{node.lineno} {node.name} has {methods} methods")
    assert not wrong, "\n".join(wrong)


def test_modules_and_public_functions_say_what_they_do():
    wrong = [
        f"{file.location} has no docstring" for file in all_files() if ast.get_docstring(file.tree) is None
    ]
    assert not wrong, "\n".join(wrong)
