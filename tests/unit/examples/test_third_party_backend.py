"""The example of a third party's backend, found and used as if it were installed."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from house.source_tree import ROOT
from polyfuse import cli
from polyfuse.base.settings import Settings
from polyfuse.compiler.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import PluginManager, State
from polyfuse.testing.conformance import run

EXAMPLE = ROOT / "examples" / "third_party_backend"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch):
    """The metadata that an installer would write, made from the example's own pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    forget_sessions()
    yield
    forget_sessions()
    for name in [n for n in sys.modules if n.split(".")[0] == "polyfuse_numpy"]:
        del sys.modules[name]


def test_it_is_found_by_its_entry_point_and_loaded_on_first_use(installed, capsys) -> None:
    cli.main(["backends", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["numpy"]["state"] == "available" and rows["numpy"]["distribution"] == "polyfuse-numpy"
    assert "polyfuse_numpy.backend" not in sys.modules
    manager = PluginManager(Settings())
    assert "numpy" not in manager.order("cpu"), "it has no priority, so it must be named"
    named = PluginManager(Settings(backends=("numpy",)))
    assert [b.name for b in named.backends("cpu")] == ["numpy"]
    assert named.state("numpy").state is State.LOADED


def test_it_passes_the_conformance_kit(installed) -> None:
    backend = PluginManager(Settings(backends=("numpy",))).backend("numpy")
    matrix = run(backend, quick=True)
    assert matrix.ok, [cell for cell in matrix.cells if cell.status.value == "fail"]
    refused = {cell.row for cell in matrix.cells if cell.status.value == "refused"}
    assert "digamma" in refused and "exp" not in refused


def test_a_model_runs_and_what_it_refuses_goes_to_the_next(installed) -> None:
    torch._dynamo.reset()
    reset_reports()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()

    def function(x):
        y = torch.softmax(model(x), -1)
        return y, y.argmax(-1)

    compiled = torch.compile(
        function, backend="polyfuse", options={"backends": ["numpy", "interpreter"], "strict": True}
    )
    x = torch.randn(4, 8)
    with torch.no_grad():
        for found, wanted in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(found, wanted)
    (report,) = last_reports()
    assert {launch.backend for launch in report.launches} == {"numpy", "interpreter"}
    assert any(d.kind == "backend" and d.reason == "no reduction argmax" for d in report.decisions)
