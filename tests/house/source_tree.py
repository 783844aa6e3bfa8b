"""The project's source as syntax trees, for the laws of this folder."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = ROOT / "core" / "polyfuse"
PLUGINS = ROOT / "plugins"
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class SourceFile:
    path: Path
    module: str
    tree: ast.Module
    text: str

    @property
    def location(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Import:
    """One imported module, and the names taken from it (none for a plain `import`)."""

    module: str
    names: tuple[str, ...]
    line: int


@functools.cache
def core_files() -> tuple[SourceFile, ...]:
    return tuple(read(path, CORE.parent) for path in sorted(CORE.rglob("*.py")))


@functools.cache
def plugin_files() -> tuple[SourceFile, ...]:
    files = []
    for package in sorted(PLUGINS.glob("*/polyfuse_*")):
        files += [read(path, package.parent) for path in sorted(package.rglob("*.py"))]
    return tuple(files)


def all_files() -> tuple[SourceFile, ...]:
    return core_files() + plugin_files()


@functools.cache
def example_files() -> tuple[SourceFile, ...]:
    return tuple(read(path, EXAMPLES) for path in sorted(EXAMPLES.rglob("*.py")))


def read(path: Path, root: Path) -> SourceFile:
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    text = path.read_text(encoding="utf-8")
    return SourceFile(path, ".".join(parts), ast.parse(text, str(path)), text)


@functools.cache
def imports(file: SourceFile, type_checking: bool = False) -> tuple[Import, ...]:
    """All imports of a file, inside functions too; those for the type checker alone only if asked for."""
    found: list[Import] = []
    for node in nodes_of(file.tree) if type_checking else walk_run_time(file.tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, (), node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append(Import(_absolute(file, node), names, node.lineno))
    return tuple(found)


@functools.cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, in the order in which they are written."""
    return tuple(walk(tree))


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, as they are written; in half of the time of `ast.walk`."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += _parts(node)


def walk_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """`walk` without the bodies of `if TYPE_CHECKING:`."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            pending += reversed(node.orelse)
            continue
        yield node
        pending += _parts(node)


def _parts(node: ast.AST) -> list[ast.AST]:
    """What a node is made of, the last first."""
    parts: list[ast.AST] = []
    for value in vars(node).values():
        if isinstance(value, list):
            parts += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            parts.append(value)
    parts.reverse()
    return parts


def docstring_nodes(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings, or bare strings used as such."""
    return {
        id(node.value)
        for node in nodes_of(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _absolute(file: SourceFile, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = file.module.split(".")
    if file.path.name != "__init__.py":
        package = package[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])
