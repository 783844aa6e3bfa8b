"""What an import may cost."""

from __future__ import annotations

import subprocess
import sys

from polyfuse.base.settings import child_environment

HEAVY = ("torch", "sympy", "numpy", "jinja2", "triton", "halide", "rich")


def modules_after(statements: str) -> set[str]:
    script = f"{statements}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=child_environment(),
    )
    return set(done.stdout.split())


def plugin_packages(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("polyfuse_") and "." in name}


def test_the_package_itself():
    modules = modules_after("import polyfuse; polyfuse.__version__")
    assert not modules & {*HEAVY, "pluggy", "polyfuse.plugin", "subprocess"}
    assert not plugin_packages(modules)


def test_discovery_imports_manifests_only():
    modules = modules_after(
        "from polyfuse.plugin import PluginManager\n"
        "from polyfuse.base.settings import Settings\n"
        "PluginManager(Settings()).states()"
    )
    assert not modules & set(HEAVY)
    allowed = ("manifest",)
    assert {name for name in plugin_packages(modules) if name.split(".")[-1] not in allowed} == set()


def test_what_runs_a_stored_program_imports_nothing_that_makes_one():
    modules = modules_after("import polyfuse.runtime.module, polyfuse.runtime.sized, polyfuse_cpp.backend")
    assert "polyfuse.runtime.graphs.status" in modules
    assert not modules & {"polyfuse.runtime.graphs.replay", "polyfuse.plugin.host", "polyfuse.schedule"}


def test_what_packages_load_reads_no_formulas():
    statements = (
        "import importlib, pkgutil, polyfuse.runtime as runtime\n"
        "for found in pkgutil.walk_packages(runtime.__path__, 'polyfuse.runtime.'):\n"
        "    if not found.name.startswith('polyfuse.runtime.regions'):  # they are called while tracing\n"
        "        importlib.import_module(found.name)"
    )
    modules = modules_after(statements)
    assert "polyfuse.runtime.graphs.inputs" in modules
    assert "sympy" not in modules


def test_the_command_line():
    assert not modules_after("import polyfuse.cli; polyfuse.cli.main([])") & set(HEAVY)


def test_public_names_resolve_lazily():
    assert "polyfuse.backend" not in modules_after("import polyfuse; dir(polyfuse)")
