"""What pages show runs as it is pasted, and what they name exists."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import runpy
from functools import cache
from pathlib import Path

import pytest
import torch

from docs.snippets import program
from house.source_tree import ROOT
from polyfuse.base.settings import option_infos
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import ENTRY_POINT_GROUP, Backend, CallSite, Choice, Config, Manifest, Source, TargetInfo

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FOLDERS = ("", "backends", "decisions")
PAGES += [page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
RUN = [page for page in PAGES if program(page)]
CLASSES = (Backend, Choice, Config, Kernel, Manifest, CallSite, Source, TargetInfo)
WRITTEN = {"program.py", "programs/", "kernels/", "native/", "timings/"}
"""Files and folders of dumps, packages and caches."""


@pytest.mark.quick(5)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "page.py"
    script.write_text(program(page), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")


def test_blocks_are_found_at_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    blocks = (
        "```python\na = 1\n```",
        "<!-- not run: it needs a GPU -->\n\n```python\nb = 2\n```",
        "<!-- block: x -->\n```python\nc = 3\n```\n<!-- end of block -->",
        "```sh\nd\n```",
        "```python\ne = 5\n```",
    )
    page.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    lines = page.read_text(encoding="utf-8").splitlines()
    assert program(page).splitlines() == [line if line in ("a = 1", "e = 5") else "" for line in lines]


@cache
def files() -> tuple[str, ...]:
    """The paths of the project's files and folders, with a slash before each, and behind folders too."""
    found: list[str] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        if names or folders:
            path = folder.removeprefix(str(ROOT))
            found += [f"{path}/", *(f"{path}/{name}" for name in names)]
    return tuple(found)


def quoted(page: Path) -> list[str]:
    """What stands in backquotes in running text."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_a_page_exist(page: Path) -> None:
    wrong = []
    for name in quoted(page):
        if re.fullmatch(r"\w[\w/]*/|[\w/]+/\w+\.(py|h|c|md|json|toml)|\w+_\w+\.py", name):
            if name not in WRITTEN and not any(path.endswith(f"/{name}") for path in files()):
                wrong.append(f"no file {name}")
        elif match := re.match(r"polyfuse(\.\w+)+", name):
            if match.group() != ENTRY_POINT_GROUP and not resolves(match.group()):
                wrong.append(f"no {match.group()}")
        elif match := re.match(r"([A-Z]\w+)\.(\w+)", name):
            owner = next((c for c in CLASSES if c.__name__ == match.group(1)), None)
            if owner is not None and not has(owner, match.group(2)):
                wrong.append(f"no {match.group()}")
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"options?=\{[^}]*?[\"']([\w.]+)[\"']:|\boption `(\w+)[=`]", text):
        option = name[0] or name[1]
        if "." not in option and option not in option_infos():
            wrong.append(f"no option {option}")
    assert not wrong, "\n".join(wrong)


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for index, part in enumerate(parts[count:], count):
            if not hasattr(found, part):
                return isinstance(found, type) and index == len(parts) - 1 and has(found, part)
            found = getattr(found, part)
        return True
    return False


def has(owner: type, name: str) -> bool:
    """Whether a class has an attribute or a field."""
    fields = {f.name for f in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    return hasattr(owner, name) or name in fields or name in getattr(owner, "__annotations__", {})
