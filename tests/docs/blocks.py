"""Blocks of documentation pages that are made by code: between two comments that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

BLOCK = re.compile(r"(<!-- block: ([\w-]+) -->\n)(.*?)(<!-- end of block -->)", re.DOTALL)


def refreshed(page: str, blocks: Mapping[str, str]) -> str:
    """The page with the content of each named block replaced."""

    def replace(match: re.Match[str]) -> str:
        return match.group(1) + blocks[match.group(2)].rstrip("\n") + "\n" + match.group(4)

    return BLOCK.sub(replace, page)


def check(path: Path, blocks: Mapping[str, str], update: bool) -> None:
    """Compare a page with what its blocks should hold, or write them."""
    page = path.read_text(encoding="utf-8")
    named = [match.group(2) for match in BLOCK.finditer(page)]
    assert sorted(named) == sorted(blocks), f"{path.name} has the blocks {named}"
    wanted = refreshed(page, blocks)
    if update:
        path.write_text(wanted, encoding="utf-8")
    assert page == wanted or update, f"{path.name} is stale; run `make docs`"


def fenced(language: str, text: str) -> str:
    """A fenced block of code."""
    return f"```{language}\n{text.strip()}\n```"


def part(text: str, name: str) -> str:
    """What a file of an example has between the comment `# begin: NAME` and the next such comment."""
    return re.split(r"^# begin: ", text, flags=re.MULTILINE)[_names(text).index(name) + 1].partition("\n")[2]


def _names(text: str) -> list[str]:
    return re.findall(r"^# begin: ([\w-]+)$", text, re.MULTILINE)
