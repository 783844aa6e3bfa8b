"""The example of a third party's backend, found and used as if it were installed."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from house.source_tree import ROOT
from polyfuse import cli
from polyfuse.autotune import search as search_module
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import Extensions, PluginManager, State
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
        # torch has an operator once in a process, and what it resolved once must not go
        if name != "polyfuse_numpy.operators":
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


def test_its_own_test_notices_planted_defects(installed) -> None:
    tests = runpy.run_path(str(EXAMPLE / "tests" / "test_defects.py"))
    tests["test_softmax"]()
    for defect in tests["MET"]:
        tests["test_the_tests_would_notice"](defect)


def test_its_operator_becomes_part_of_a_kernel(installed) -> None:
    torch._dynamo.reset()
    forget_sessions()
    swiglu = importlib.import_module("polyfuse_numpy.operators").swiglu

    def function(gate, up):
        return swiglu(gate * 2, up) / 8

    arguments = torch.randn(5, 6), torch.randn(5, 6)
    reports = {}
    for name in ("numpy", "interpreter"):
        reset_reports()
        torch._dynamo.reset()
        options = {"backends": [name], "strict": True}
        found = torch.compile(function, backend="polyfuse", options=options)(*arguments)
        torch.testing.assert_close(found, function(*arguments))
        (reports[name],) = last_reports()
    ours, others = reports["numpy"], reports["interpreter"]
    assert ours.calls == () and ours.kernels == 1 and ("numpy.exact-reciprocal", 1) in ours.rewrites
    assert others.calls == ("polyfuse_numpy.swiglu.default",), "it is not in charge, so it adds nothing"
    assert not [name for name, _ in others.rewrites if name.startswith("numpy")]


@pytest.mark.quick(1)
@pytest.mark.parametrize("fastest", ["numpy:blocks block=8", "library"])
def test_a_template_for_its_operator_is_timed(installed, monkeypatch, tmp_path, fastest) -> None:
    def trials(runner, problem, candidates, *_):
        runner.prepare(problem)
        for candidate in candidates:
            runner.first(candidate)
            assert runner.check(candidate, candidates[0]) <= 1
        return {c.name: 1.0 if c.name == fastest else 2.0 for c in candidates}

    monkeypatch.setattr(search_module, "run_trials", trials)
    torch._dynamo.reset()
    reset_reports()
    distances = importlib.import_module("polyfuse_numpy.operators").distances
    options = {"backends": ["numpy"], "strict": True, "gemm": "fastest", "tune_in_process": True}
    compiled = torch.compile(
        lambda a, b: distances(a, b).sqrt(),
        backend="polyfuse",
        options={**options, "cache_dir": str(tmp_path)},
        dynamic=False,
    )
    for rows in (19, 1):
        a, b = torch.randn(rows, 5), torch.randn(7, 5)
        torch.testing.assert_close(compiled(a, b), distances(a, b).sqrt())
        (call,) = last_reports()[-1].calls
        assert call.startswith("polyfuse_numpy" if fastest == "library" else "object.")
    found = compiled(a.double(), b.double())
    torch.testing.assert_close(found, distances(a.double(), b.double()).sqrt())
    assert last_reports()[-1].calls == ("polyfuse_numpy.distances.default",)
    assert any(d.reason == "only tensors of f32 have a template" for d in last_reports()[-1].decisions)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("divisor", "changed"), [(8, 1), (-0.25, 1), (3.0, 0), (2.0**200, 0), (1e-45, 0)])
def test_division_becomes_multiplication_where_that_is_exact(installed, divisor, changed) -> None:
    torch._dynamo.reset()
    reset_reports()
    x = torch.tensor([1.0, -0.0, torch.inf, torch.nan, 3e38, 1e-45, 7.25])
    options = {"backends": ["numpy"], "strict": True}
    found = torch.compile(lambda x: x / divisor, backend="polyfuse", options=options)(x)
    torch.testing.assert_close(found, x / divisor, rtol=0, atol=0, equal_nan=True)
    assert dict(last_reports()[-1].rewrites).get("numpy.exact-reciprocal", 0) == changed


def test_what_it_adds_is_part_of_the_keys(installed) -> None:
    facts = Extensions(PluginManager(Settings())).key_facts()
    assert facts is not None and "numpy: lowerings and rewrites of 0.1.0" in facts
