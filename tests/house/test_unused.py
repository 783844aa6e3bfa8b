"""Nothing stands in the product that nothing uses. What only tests use counts as unused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from house.source_tree import (
    ROOT,
    SourceFile,
    all_files,
    docstring_nodes,
    example_files,
    nodes_of,
    plugin_files,
    read,
    walk,
)

PRIVATE = re.compile("_[a-z]")
WORD = re.compile(r"[A-Za-z_]\w+")
REGISTERED = {"lowers", "decomposition", "rewrite", "hookimpl"}
"""Decorators that enter a function into a table."""

CALLED_BY_OTHERS = {
    # what AOTAutograd's cache calls on compiled code
    "prepare_for_serialization", "post_compile", "set_triton_bundle",
    # sympy's printers choose a method by the class of what they print
    "_print_And", "_print_Or", "_print_Not",
    # what pickle calls on a pickler
    "reducer_override",
    # generated Halide programs
    "scheduled_by",
    # what torch calls on process groups, and users on what a collective returns
    "is_completed", "get_future", "getBackendName", "reduce_scatter", "alltoall",
    # public methods of loaded packages, and of an operator's choices
    "load_constants", "precompile",
    # what puts state that a process has once back, and parts of stages by themselves: for tests
    "use_device", "forget_graph_memory", "forget_costs", "memory_plan", "parse_graph",
}  # fmt: skip


def test_no_parameter_of_a_private_function_is_unused():
    """Of functions that are called only: what is handed on has the parameters that its callers give."""
    unused = []
    for file in all_files():
        nodes = nodes_of(file.tree)
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        handed = {
            node.id if isinstance(node, ast.Name) else node.attr
            for node in nodes
            if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in called
        }
        for node in nodes:
            if not isinstance(node, ast.FunctionDef) or not PRIVATE.match(node.name) or node.decorator_list:
                continue
            read = {name.id for item in node.body for name in walk(item) if isinstance(name, ast.Name)}
            names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
            rest = [name for name in names if name not in read | {"self", "cls"} and not name.startswith("_")]
            if rest and node.name not in handed and node.name not in CALLED_BY_OTHERS:
                unused.append(f"{file.location}:{node.lineno} {node.name}: {', '.join(rest)}")
    assert not unused, "\n".join(unused)


def test_nothing_is_unused():
    """A name is used where code reads it, or where it is a word of generated text or of a table."""
    used = set(CALLED_BY_OTHERS)
    for file in (*all_files(), *example_files(), *others()):
        used.update(names_in(file))
    unused = [
        f"{file.location}:{node.lineno} unused {node.name}"
        for file in all_files()
        for node in nodes_of(file.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and node.name not in used
        and not (node.name.startswith("__") and node.name.endswith("__"))
        and REGISTERED.isdisjoint(map(decorator, node.decorator_list))
    ]
    assert not unused, "\n".join(unused)


def test_each_option_of_a_plugin_is_read_by_it():
    """An option that a manifest describes and nothing reads would be taken without an effect."""
    unread = []
    for manifest in (file for file in plugin_files() if file.path.name == "manifest.py"):
        folder = manifest.path.parent
        texts = {
            part.value
            for file in plugin_files()
            if file is not manifest and file.path.is_relative_to(folder)
            for part in nodes_of(file.tree)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        described = [
            key.value
            for call in nodes_of(manifest.tree)
            if isinstance(call, ast.keyword) and call.arg == "options" and isinstance(call.value, ast.Dict)
            for key in call.value.keys
            if isinstance(key, ast.Constant)
        ]
        unread += [f"{manifest.location}: {name}" for name in described if name not in texts]
    assert not unread, "\n".join(unread)


def others() -> Iterator[SourceFile]:
    for folder in ("benchmarks", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield read(path, ROOT / folder)


def names_in(file: SourceFile) -> Iterator[str]:
    """Names that a file reads. That a package hands one on is no use of it, nor is a list of what it has."""
    skipped = docstring_nodes(file.tree)
    for node in file.tree.body:
        if isinstance(node, (ast.Assign, ast.AugAssign)) and "__all__" in ast.dump(node)[:80]:
            skipped |= {id(part) for part in walk(node)}
    hands_on = file.path.name == "__init__.py"
    for node in nodes_of(file.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not hands_on:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield from WORD.findall(node.value)


def decorator(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
