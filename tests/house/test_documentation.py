"""What is public is documented, and the documentation is what the code says."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re

import pytest

from house.source_tree import CORE, ROOT, core_files, nodes_of, plugin_files
from polyfuse.base import errors
from polyfuse.base.settings import option_infos

spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
assert spec is not None and spec.loader is not None
generate_docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate_docs)

HOOKS = dict(generate_docs.hooks())

# Hooks that no shipped plugin uses yet, each with what will; a hook that nothing ever uses goes away.
WAITING = {
    "polyfuse_codegen": "manifests' `load`, through the manager",
}


@pytest.mark.parametrize("name", generate_docs.PAGES)
def test_generated_pages_are_current(name):
    path = ROOT / "docs" / "reference" / name
    assert path.read_text(encoding="utf-8") == generate_docs.PAGES[name]().rstrip() + "\n", "run `make docs`"


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_say_the_same_things_in_the_same_order(name):
    doc = inspect.getdoc(HOOKS[name]) or ""
    positions = [doc.find(part) for part in ("Arguments:", "Called:", "Errors:", "Example::")]
    assert -1 not in positions and positions == sorted(positions)
    for argument in inspect.signature(HOOKS[name]).parameters:
        assert f"`{argument}`" in doc


ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type)}
UNSAID = ("core/polyfuse/lowering/", "core/polyfuse/cli/", "core/polyfuse/testing/")
"""Where each function may raise the same: a lowering that it refuses, a command what `main` prints."""


def raised(function: ast.FunctionDef) -> set[str]:
    """The errors of ours that a function raises itself."""
    names, pending = set(), list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            names.add(ast.unparse(node.exc.func))
        pending += ast.iter_child_nodes(node)
    return names & ERRORS


def test_public_functions_say_which_errors_they_raise():
    wrong = []
    for file in (*core_files(), *plugin_files()):
        if file.location.startswith(UNSAID):
            continue
        private = {
            item
            for node in nodes_of(file.tree)
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))
            if node.name.startswith("_") or isinstance(node, ast.FunctionDef)
            for item in node.body
        }
        for node in nodes_of(file.tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node in private:
                continue
            if node.args.args and node.args.args[0].arg == "ctx":  # a lowering
                continue
            missing = {name for name in raised(node) if name not in (ast.get_docstring(node) or "")}
            wrong += [f"{file.location}:{node.lineno} {node.name} raises {name}" for name in sorted(missing)]
    assert not wrong, "\n".join(wrong)


def used_hooks() -> set[str]:
    used = set()
    for file in (*core_files(), *plugin_files()):
        if file.path.is_relative_to(CORE) and not file.path.is_relative_to(CORE / "reference"):
            continue
        for node in nodes_of(file.tree):
            if isinstance(node, ast.FunctionDef) and node.decorator_list and node.name in HOOKS:
                used.add(node.name)
    return used


def test_every_hook_is_used_by_a_shipped_plugin():
    used = used_hooks()
    assert set(HOOKS) - used - set(WAITING) == set()
    assert set(WAITING) & used == set(), "these are used now: take them off the list"


def test_errors_and_settings_are_documented():
    for name in errors.__all__:
        assert inspect.getdoc(getattr(errors, name)), name
    for info in option_infos().values():
        assert len(info.doc) > 10, info.name


def test_every_setting_is_read():
    """Outside the module that declares it, or by a method of `Settings` that others call."""
    texts = [file.text for file in (*core_files(), *plugin_files())]
    unread = [name for name in option_infos() if not any(re.search(rf"\.{name}\b", text) for text in texts)]
    assert not unread
