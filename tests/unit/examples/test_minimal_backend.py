"""The small backend that the guide for authors begins with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from house.source_tree import ROOT
from polyfuse import cli
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import DType, IndexValue, Load, PluginManager, UnsupportedError
from polyfuse.testing.conformance import run

EXAMPLE = ROOT / "examples" / "minimal_backend"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    info = tmp_path / "polyfuse_minimal-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polyfuse-minimal\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[polyfuse.backends]\nminimal = polyfuse_minimal\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    forget_sessions()
    yield
    forget_sessions()
    sys.modules.pop("polyfuse_minimal", None)


def test_it_computes_what_it_claims_and_leaves_the_rest(installed: None) -> None:
    torch._dynamo.reset()
    reset_reports()

    def f(x, y):
        return (x * y - x).t(), torch.exp(x)

    x, y = torch.randn(4, 6), torch.randn(6)
    options = {"backends": ["minimal", "interpreter"], "graph_cache": False}
    found = torch.compile(f, backend="polyfuse", options=options)(x, y)
    torch.testing.assert_close(found, f(x, y))
    (report,) = last_reports()
    assert {launch.backend for launch in report.launches} == {"minimal", "interpreter"}


def test_an_unknown_statement_is_an_error(installed: None) -> None:
    from polyfuse_minimal import statement

    for unknown in (IndexValue("v0", 0), Load("v0", "in0", 0, DType.f32, mask="v1", other="v2")):
        with pytest.raises(UnsupportedError, match=f"{unknown.op} has no text here"):
            statement(unknown)


def test_the_program_of_the_guide_is_explained_as_it_says(installed: None, capsys) -> None:
    torch._dynamo.reset()
    assert cli.main(["explain", str(EXAMPLE / "program.py")]) == 0
    out = capsys.readouterr().out
    page = (ROOT / "docs" / "writing-a-backend.md").read_text(encoding="utf-8").partition("For `f`")[2]
    for text in page.split("```text\n")[1:3]:
        for line in text.partition("```")[0].splitlines():
            assert line in out.splitlines()


def test_tensors_that_begin_later_or_have_gaps(installed: None) -> None:
    torch._dynamo.reset()
    x = torch.randn(64)
    options = {"backends": ["minimal"], "strict": True, "graph_cache": False}
    found = torch.compile(lambda a, b: a + b, backend="polyfuse", options=options)(x[3:40:4], x[10:20])
    torch.testing.assert_close(found, x[3:40:4] + x[10:20])


def test_it_passes_the_conformance_kit(installed: None) -> None:
    matrix = run(PluginManager(Settings(backends=("minimal",))).backend("minimal"), quick=True)
    assert matrix.ok, [cell for cell in matrix.cells if cell.status.value == "fail"]
    assert [cell for cell in matrix.cells if cell.row == "sub" and cell.status.value == "pass"]
