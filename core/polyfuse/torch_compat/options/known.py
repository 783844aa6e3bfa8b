"""The names of options that torch's own compiler takes: read from the text of its configuration, without
importing anything of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
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
    groups = {item.name: item for item in tree.body if isinstance(item, ast.ClassDef)}
    grouped = (_of_group(group, f"{name}.", groups) for name, group in groups.items())
    return frozenset(_names(tree.body, "")).union(*grouped)


def _of_group(group: ast.ClassDef, prefix: str, groups: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """The options of a group, with those of the groups that it extends."""
    yield from _names(group.body, prefix)
    for base in group.bases:
        if isinstance(base, ast.Name) and base.id in groups:
            yield from _of_group(groups[base.id], prefix, groups)


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for item in body:
        targets = (
            item.targets
            if isinstance(item, ast.Assign)
            else [item.target]
            if isinstance(item, ast.AnnAssign)
            else []
        )
        yield from (f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name))
