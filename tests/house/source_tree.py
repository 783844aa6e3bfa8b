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
    def place(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Import:
    """One imported module, and the names taken from it (none for a plain `import`)."""

    module: str
    names: tuple[str, ...]
    line: int


@functools.cache
def core_files() -> tuple[SourceFile, ...]:
    return tuple(_read(path, CORE.parent) for path in sorted(CORE.rglob("*.py")))


@functools.cache
def plugin_files() -> tuple[SourceFile, ...]:
    files = []
    for package in sorted(PLUGINS.glob("*/polyfuse_*")):
        files += [_read(path, package.parent) for path in sorted(package.rglob("*.py"))]
    return tuple(files)


def all_files() -> tuple[SourceFile, ...]:
    return core_files() + plugin_files()


@functools.cache
def example_files() -> tuple[SourceFile, ...]:
    return tuple(_read(path, EXAMPLES) for path in sorted(EXAMPLES.rglob("*.py")))


def _read(path: Path, root: Path) -> SourceFile:
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    text = path.read_text(encoding="utf-8")
    return SourceFile(path, ".".join(parts), ast.parse(text, str(path)), text)


def imports(file: SourceFile, type_checking: bool = False) -> Iterator[Import]:
    """All imports of a file, inside functions too; those for the type checker alone only if asked for."""
    for node in ast.walk(file.tree) if type_checking else walk_run_time(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield Import(_absolute(file, node), names, node.lineno)


def walk_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk` without the bodies of `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield from walk_run_time(other)
            continue
        yield from walk_run_time(child)


def docstring_nodes(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings, or bare strings used as such."""
    return {
        id(node.value)
        for node in ast.walk(tree)
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
