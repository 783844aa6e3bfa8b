"""What a plugin needs is in one package."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyfuse
from house.source_tree import ROOT
from polyfuse import plugin, testing
from polyfuse.base.settings import child_environment

PUBLIC = {"polyfuse": polyfuse, "polyfuse.plugin": plugin, "polyfuse.testing": testing}
WHOLE = ("polyfuse.aot",)
PLUGINS = [
    ROOT / "examples" / name
    for name in ("accelerator", "minimal_backend", "small_plugins", "third_party_backend", "tiny_backend.py")
]
TEMPLATES = ROOT / "core" / "polyfuse" / "cli" / "new_backend" / "templates"
GUIDES = [ROOT / "docs" / name for name in ("writing-a-backend.md", "new-accelerator.md")]


def sources() -> Iterator[tuple[Path, str]]:
    """The Python of the examples of plugins, of the two guides, and of what `new-backend` writes."""
    for source in PLUGINS:
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            yield path, path.read_text(encoding="utf-8")
    for path in GUIDES:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S):
            yield path, block
    for path in sorted(TEMPLATES.glob("*.py.jinja")):
        yield path, re.sub(r"\{%.*?%\}", "", re.sub(r"\{\{.*?\}\}", "x", path.read_text(encoding="utf-8")))


def private(text: str) -> Iterator[str]:
    """Imports of what is not public."""
    for item in ast.walk(ast.parse(text)):
        if isinstance(item, ast.Import):
            names = {name.name for name in item.names if name.name.split(".")[0] == "polyfuse"}
            yield from sorted(names - {*PUBLIC, *WHOLE})
        elif isinstance(item, ast.ImportFrom) and (item.module or "").split(".")[0] == "polyfuse":
            public = PUBLIC.get(item.module or "")
            known = {*getattr(public, "__all__", ()), *(name.rpartition(".")[2] for name in PUBLIC)}
            yield from (f"{item.module}.{n.name}" for n in item.names if not public or n.name not in known)


def test_examples_guides_and_new_backends_import_what_is_public():
    found = [(path, text) for path, text in sources() if "polyfuse" in text]
    assert len(found) > 20
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, text in found for name in private(text)]
    assert not wrong, "\n".join(wrong)


def test_the_reference_describes_the_classes_that_examples_use():
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    text = "\n".join(text for _, text in sources())
    used = {name for name in plugin.__all__ if re.search(rf"\b{name}\b", text)}
    classes = {name for name in used if inspect.isclass(value := getattr(plugin, name)) and value.__doc__}
    missing = {n for n in classes if not re.search(rf"^#+ `(polyfuse\.)?plugin\.{n}`", page, re.M)}
    errors = {name for name in missing if issubclass(getattr(plugin, name), Exception)}  # on their own page
    assert not missing - errors - {"Settings"}, missing  # the options, on a page of their own too


@pytest.mark.parametrize(
    "text", ["from polyfuse.ir.nodes import View", "import polyfuse.ir", "from polyfuse.plugin import host"]
)
def test_what_is_private_is_found(text):
    assert list(private(text))


def test_every_public_name_is_there_and_none_costs_before_it_is_used():
    script = """
import sys
import polyfuse.plugin, polyfuse.testing
heavy = ("torch", "numpy", "sympy", "pytest", "polyfuse.ir", "polyfuse.kit")
print(*(name for name in heavy if name in sys.modules))
for module in (polyfuse.plugin, polyfuse.testing):
    for name in module.__all__:
        assert getattr(module, name) is not None, name
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=child_environment(), check=False
    )
    assert not done.stdout.strip() and not done.returncode, done.stdout + done.stderr[-2000:]
