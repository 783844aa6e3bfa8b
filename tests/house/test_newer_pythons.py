"""The sources fit Pythons that are newer than those the tests run on, as far as it can be read from them.
`make test-all` checks the types against the standard library of 3.14 too.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator

from house.source_tree import ROOT, all_files, example_files, walk

NEWEST = (3, 14)

# Modules that 3.12, 3.13 and 3.14 removed.
REMOVED_MODULES = {
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils", "imghdr",
    "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr",
    "spwd", "sunau", "telnetlib", "uu", "xdrlib",
}  # fmt: skip

# Names that they removed from modules which stay.
REMOVED_NAMES = {
    "ast.Bytes", "ast.Ellipsis", "ast.NameConstant", "ast.Num", "ast.Str", "asyncio.get_child_watcher",
    "asyncio.set_child_watcher", "collections.abc.ByteString", "configparser.SafeConfigParser",
    "importlib.abc.Finder", "importlib.find_loader", "locale.resetlocale", "pkgutil.ImpImporter",
    "pkgutil.find_loader", "pkgutil.get_loader", "ssl.wrap_socket", "typing.ByteString", "typing.io",
    "typing.re", "unittest.findTestCases", "unittest.makeSuite", "urllib.parse.Quoter",
    "urllib.request.FancyURLopener", "urllib.request.URLopener",
}  # fmt: skip

# What takes the default start method, which is another one from 3.14 on.
BY_START_METHOD = {
    "Barrier", "Event", "JoinableQueue", "Lock", "Manager", "Pool", "Process", "Queue", "RLock",
    "Semaphore", "Value", "Array",
}  # fmt: skip


# What a text has in which the tests below find something.
TELLING = re.compile(
    rf"^\s*(import|from)\s+({'|'.join(REMOVED_MODULES)})\b"
    rf"|\b({'|'.join({name.rpartition('.')[2] for name in REMOVED_NAMES})})\b"
    r"|multiprocessing|\bmp\.|get_context|ProcessPoolExecutor|__annotations__|\bfinally\b",
    re.MULTILINE,
)


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """What the tests below look at, in all that is written in Python, with the file in which it is."""
    trees = [(f.location, f.tree) for f in (*all_files(), *example_files()) if TELLING.search(f.text)]
    for folder in ("tests", "tools", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8") if "node_modules" not in path.parts else ""
            if TELLING.search(text):
                trees.append((str(path.relative_to(ROOT)), ast.parse(text)))
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call, ast.Subscript, ast.Try)
    return [(location, node) for location, tree in trees for node in walk(tree) if isinstance(node, kinds)]


def dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_nothing_removed_is_used():
    wrong = []
    for location, node in nodes():
        names = imported(node)
        removed = [name for name in names if name.partition(".")[0] in REMOVED_MODULES]
        used = [*names, dotted(node)] if isinstance(node, ast.Attribute) else names
        removed += [name for name in used if name in REMOVED_NAMES]
        wrong += [f"{location}:{getattr(node, 'lineno', 0)} uses {name}" for name in removed]
    assert not wrong, "\n".join(wrong)


def test_processes_are_started_by_a_method_that_is_named():
    """`fork` is the default until 3.13, `forkserver` from 3.14 on."""
    wrong = []
    for location, node in nodes():
        if not isinstance(node, ast.Call):
            continue
        module, _, name = dotted(node.func).rpartition(".")
        named = bool(node.args or node.keywords)
        if name == "ProcessPoolExecutor":
            named = len(node.args) > 1 or "mp_context" in {keyword.arg for keyword in node.keywords}
        elif module in ("multiprocessing", "torch.multiprocessing", "mp") and name in BY_START_METHOD:
            named = False
        elif name != "get_context":
            continue
        if not named:
            wrong.append(f"{location}:{node.lineno} calls {name} without a start method")
    assert not wrong, "\n".join(wrong)


def test_annotations_are_not_read_from_a_namespace():
    """From 3.14 on a class's dictionary holds a function that makes them, and not the annotations."""
    wrong = [
        f"{location}:{node.lineno}"
        for location, node in nodes()
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "__annotations__"
    ]
    assert not wrong, wrong


def leaving(body: list[ast.stmt], loops: bool = False) -> Iterator[ast.stmt]:
    """Statements that leave a block, not those that leave a loop or a function within it."""
    for item in body:
        if isinstance(item, ast.Return) or (isinstance(item, (ast.Break, ast.Continue)) and not loops):
            yield item
        elif not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = loops or isinstance(item, (ast.For, ast.While, ast.AsyncFor))
            for name in ("body", "orelse", "finalbody"):
                yield from leaving(getattr(item, name, []), inside)


def test_no_finally_is_left_early():
    """3.14 warns of it, and what was raised is lost."""
    wrong = [
        f"{location}:{inner.lineno}"
        for location, node in nodes()
        if isinstance(node, ast.Try)
        for inner in leaving(node.finalbody)
    ]
    assert not wrong, wrong


def test_the_metadata_admits_it_and_guards_what_has_no_wheels():
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = ".".join(map(str, NEWEST))
    assert f"{version}.0" in SpecifierSet(project["requires-python"])
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    extras = project["optional-dependencies"]
    environment = {"python_version": version, "platform_system": "Linux", "platform_machine": "x86_64"}
    for extra in ("halide", "dev"):
        for requirement in map(Requirement, extras[extra]):
            if requirement.name == "halide":
                assert requirement.marker is not None and not requirement.marker.evaluate(environment)
                assert requirement.marker.evaluate({**environment, "python_version": "3.13"})
