"""Who may import whom."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterable

from house.source_tree import SourceFile, all_files, core_files, imports, plugin_files

# A module imports only from floors below its own, and freely within its own package.
FLOORS = {
    "testing": 10, "__main__": 10,
    "": 9, "backend": 9, "interface": 9, "integrations": 9, "bench": 9.5, "cli": 9.7,
    "reporting": 8.5,
    "compiler": 8,
    "aot": 7, "distributed": 7,
    "program": 6, "autotune": 6,
    "lowering": 5, "schedule": 5, "workers": 5, "reference": 5,
    "checking": 5, "flex": 5,
    "plugin": 4, "kit": 4, "rewrite": 4, "cache": 4,
    "ir": 3, "frontend": 3,
    "symbolic": 2, "runtime": 2,
    # Between two floors: what hides torch's private names serves everything that deals with torch.
    "torch_compat": 1.5,
    "base": 1,
}  # fmt: skip

# What a plugin may import of the core; itself and other packages are its own affair.
OPEN_TO_PLUGINS = {"base", "ir", "symbolic", "runtime", "plugin", "kit", "flex", "autotune"}

# What plugins for one vendor's GPUs share; no plugin itself, and not for the core.
SHARED_LIBRARY = "polyfuse_cuda"

# A dispatcher on floor 9 may name commands that stand above it.
DISPATCHED = {("cli", "testing")}


def package(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def modules_of(files: Iterable[SourceFile]) -> frozenset[str]:
    return frozenset(file.module for file in files)


def imports_among(
    modules: frozenset[str], file: SourceFile, type_checking: bool = False
) -> list[tuple[str, int]]:
    """(module, line) for each import of one of `modules`; `from package import module` is one of that."""
    found = []
    for item in imports(file, type_checking):
        for name in item.names or ("",):
            full = f"{item.module}.{name}"
            if full in modules or item.module in modules:
                found.append((full if full in modules else item.module, item.line))
    return found


def cycle_among(files: tuple[SourceFile, ...]) -> list[str]:
    """Modules that import one another in a circle, be it for the type checker alone; empty if none do."""
    modules = modules_of(files)
    graph = {
        file.module: sorted({module for module, _ in imports_among(modules, file, True)} - {file.module})
        for file in files
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_has_a_floor():
    assert {package(file.module) for file in core_files()} <= set(FLOORS)


def test_imports_go_down():
    wrong, modules = [], modules_of(core_files())
    for file in core_files():
        here = package(file.module)
        for module, line in imports_among(modules, file):
            there = package(module)
            if here == there or (here, there) in DISPATCHED:
                continue
            if FLOORS[there] >= FLOORS[here]:
                wrong.append(
                    f"{file.location}:{line} ({here}, {FLOORS[here]}) imports {module} ({FLOORS[there]})"
                )
    assert not wrong, "\n".join(wrong)


def test_no_cycles():
    cycle = cycle_among(all_files())
    assert not cycle, "import cycle: " + " -> ".join(cycle)


def test_a_cycle_for_the_type_checker_alone_is_one(tmp_path):
    texts = {"one": "if TYPE_CHECKING:\n    import two\n", "two": "import one\n"}
    files = tuple(
        SourceFile(tmp_path / f"{module}.py", module, ast.parse(text), text) for module, text in texts.items()
    )
    assert set(cycle_among(files)) == {"one", "two"}
    assert not cycle_among(files[:1])


def test_the_core_imports_no_plugin():
    wrong = [
        f"{file.location}:{item.line} imports {item.module}"
        for file in core_files()
        for item in imports(file)
        if item.module.startswith("polyfuse_")
    ]
    assert not wrong, "\n".join(wrong)


def test_plugins_use_the_door():
    wrong = []
    for file in plugin_files():
        own = file.module.split(".")[0]
        for item in imports(file):
            top = item.module.split(".")[0]
            if top.startswith("polyfuse_") and top not in (own, SHARED_LIBRARY):
                wrong.append(f"{file.location}:{item.line} imports another plugin, {item.module}")
            if top == "polyfuse":
                packages = {package(item.module)} if "." in item.module else set(item.names or ("",))
                wrong += [
                    f"{file.location}:{item.line} imports polyfuse.{name}"
                    for name in packages - OPEN_TO_PLUGINS
                ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_inductor():
    wrong = []
    for file in all_files():
        for item in imports(file):
            names = [item.module, *(f"{item.module}.{name}" for name in item.names)]
            if any(name == "torch._inductor" or name.startswith("torch._inductor.") for name in names):
                wrong.append(f"{file.location}:{item.line}")
        if "import_module" in file.text and '"torch._inductor' in file.text:
            wrong.append(f"{file.location}: imports it by name")
    assert not wrong, "\n".join(wrong)
