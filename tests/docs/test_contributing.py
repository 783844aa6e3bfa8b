"""CONTRIBUTING shows what a new operator, reduction or store mode takes, in files that are there."""

from __future__ import annotations

import re

from house.source_tree import CORE, PLUGINS, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MOST = {"scalar operator": 4, "reduction": 5, "store mode": 6}
"""Files that one of each kind may take."""


def changes() -> list[dict[str, list[str]]]:
    """Of each block of changes, the lines of each file."""
    found = []
    for block in re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL):
        parts = re.split(r"^--- (\S+)\n", block, flags=re.MULTILINE)[1:]
        found.append({name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)})
    return found


def test_each_kind_takes_few_files_and_they_are_there() -> None:
    rows = re.findall(
        r"^\| (?:\*\*([\w ]+)\*\*)? *\| ([^|]+)", PAGE.partition("| what | files |")[2], re.MULTILINE
    )
    files: dict[str, int] = {}
    kind = ""
    for name, text in rows:
        kind = name or kind
        files[kind] = files.get(kind, 0) + 1
        plugin = re.match(r"(Triton|C\+\+): ", text)
        where = {"Triton": PLUGINS / "triton/polyfuse_triton", "C++": PLUGINS / "cpp/polyfuse_cpp"}
        folder = where[plugin[1]] if plugin else CORE
        assert any((folder / path).exists() for path in re.findall(r"`([\w./]+)`", text)), text
    assert set(files) == set(MOST)
    assert not [kind for kind, count in files.items() if count > MOST[kind]]


def test_the_changes_that_are_shown_fit_the_files() -> None:
    shown = changes()
    assert len(shown) == 2 and all(len(files) <= 4 for files in shown)
    for files in shown:
        for name, lines in files.items():
            text = (ROOT / name).read_text(encoding="utf-8")
            removed = [line[1:].strip() for line in lines if line.startswith("-")]
            assert removed or any(line.startswith("+") for line in lines), name
            assert not [line for line in removed if line not in text], name
