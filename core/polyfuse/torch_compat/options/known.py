"""The names of options that torch's own compiler takes: read from the text of its configuration, without
importing anything of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch


@cache
def inductor_options() -> frozenset[str]:
    """The names, those within a group as `group.name`; none where the file cannot be read."""
    path = Path(torch.__file__).parent / "_inductor" / "config.py"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(_names(tree.body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for item in body:
        if isinstance(item, ast.ClassDef) and not prefix:
            yield from _names(item.body, f"{item.name}.")
        targets = (
            item.targets
            if isinstance(item, ast.Assign)
            else [item.target]
            if isinstance(item, ast.AnnAssign)
            else []
        )
        yield from (f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name))
