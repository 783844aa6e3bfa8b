"""What an import may cost."""

from __future__ import annotations

import subprocess
import sys

from polyfuse.base.settings import child_environment

HEAVY = ("torch", "sympy", "numpy", "jinja2", "triton", "halide", "rich")


def modules_after(*steps: str) -> list[set[str]]:
    """The modules that are imported behind each of *steps*, statements that one process runs in turn."""
    listing = "import sys\nprint('modules:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(f"{step}\n{listing}" for step in steps)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=child_environment(),
    )
    lines = done.stdout.splitlines()
    return [set(line.split()) for line in lines if line.startswith("modules:")]


def plugin_packages(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("polyfuse_") and "." in name}


def test_what_starts_imports_little():
    package, names, command, discovery = modules_after(
        "import polyfuse; polyfuse.__version__",
        "dir(polyfuse)",
        "import polyfuse.cli; polyfuse.cli.main([])",
        "from polyfuse.plugin import PluginManager\n"
        "from polyfuse.base.settings import Settings\n"
        "PluginManager(Settings()).states()",
    )
    assert not package & {*HEAVY, "pluggy", "polyfuse.plugin", "subprocess"}
    assert not plugin_packages(package)
    assert "polyfuse.backend" not in names, "public names are found when they are used"
    assert not command & set(HEAVY)
    assert not discovery & set(HEAVY)
    # of plugins, their manifests alone
    assert {name.split(".")[-1] for name in plugin_packages(discovery)} == {"manifest"}


def test_what_runs_a_stored_program_imports_nothing_that_makes_one():
    found, with_all = modules_after(
        "import polyfuse.runtime.module, polyfuse.runtime.sized, polyfuse_cpp.backend",
        "import importlib, pkgutil, polyfuse.runtime as runtime\n"
        "for found in pkgutil.walk_packages(runtime.__path__, 'polyfuse.runtime.'):\n"
        "    if not found.name.startswith('polyfuse.runtime.regions'):  # they are called while tracing\n"
        "        importlib.import_module(found.name)",
    )
    assert "polyfuse.runtime.graphs.status" in found
    assert not found & {"polyfuse.runtime.graphs.replay", "polyfuse.plugin.host", "polyfuse.schedule"}
    # what packages load reads no formulas
    assert "polyfuse.runtime.graphs.inputs" in with_all
    assert "sympy" not in with_all
