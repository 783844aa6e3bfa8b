"""Nothing stands in the product that nothing uses. What only tests use counts as unused."""

from __future__ import annotations

import ast
import re

import pytest

from house.source_tree import ROOT, all_files, nodes_of, walk

vulture = pytest.importorskip("vulture", reason="finds unused code; part of the extra `dev`")

FOLDERS = ("core", "plugins", "benchmarks", "tools", "examples")
PRIVATE = re.compile("_[a-z]")
KINDS = {"class", "function", "method", "property"}
REGISTERED = ["@lowers*", "@decomposition*", "@rewrite*", "@hookimpl*"]
"""Decorators that enter a function into a table."""

CALLED_BY_OTHERS = {
    # the protocol of modules with lazy attributes
    "__getattr__", "__dir__",
    # the type of a callable argument, never called by this name
    "__call__",
    # what AOTAutograd's cache calls on compiled code
    "prepare_for_serialization", "post_compile", "set_triton_bundle",
    # sympy's printers choose a method by the class of what they print
    "_print_And", "_print_Or", "_print_Not",
    # generated Halide programs
    "scheduled_by",
    # what torch calls on process groups, and users on what a collective returns
    "is_completed", "get_future", "getBackendName", "reduce_scatter", "alltoall",
    # public methods of loaded packages, and of an operator's choices
    "load_constants", "precompile",
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
                unused.append(f"{file.place}:{node.lineno} {node.name}: {', '.join(rest)}")
    assert not unused, "\n".join(unused)


def test_nothing_is_unused():
    tree = vulture.Vulture(ignore_decorators=REGISTERED)
    tree.scavenge([str(ROOT / folder) for folder in FOLDERS])
    unused = [
        f"{item.filename.relative_to(ROOT)}:{item.first_lineno} unused {item.typ} {item.name}"
        for item in tree.get_unused_code(min_confidence=60)
        if item.filename.relative_to(ROOT).parts[0] in {"core", "plugins"}
        and item.typ in KINDS
        and item.name not in CALLED_BY_OTHERS
    ]
    assert not unused, "\n".join(unused)
