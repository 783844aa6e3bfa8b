"""Dumped graphs and kernels run again; faulty decisions are found by bisection."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyfuse import cli
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.cli.bisect import decisions, first_failing
from polyfuse.compiler.reports.replay import replay
from polyfuse.compiler.session import session_for

INTERPRETED = {"backends": ("interpreter",)}


def session(**options):
    return session_for(Settings.resolve(None, {**INTERPRETED, **options}))


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    torch._dynamo.reset()
    embedding = torch.nn.Embedding(5, 8)

    def model(x, at):
        y = embedding(at) + x
        x.add_(1)
        return torch.softmax(y, -1) @ x.t(), y.sum()

    compiled = torch.compile(model, backend="polyfuse", options={**INTERPRETED, "dump": str(tmp_path)})
    with torch.no_grad():
        compiled(torch.randn(3, 8), torch.tensor([0, 4, 2]))
    (folder,) = tmp_path.iterdir()
    return folder


def test_a_graph(dumped: Path) -> None:
    found = replay((dumped / "graph.ir").read_text(), session())
    assert [d.name for d in found][:2] == ["result 0", "result 1"]
    assert any(d.name.startswith("input") for d in found), "what the graph mutates is compared too"
    assert not any(d.problem for d in found)


def test_every_kernel(dumped: Path, capsys) -> None:
    for path in sorted(dumped.glob("kernel*.ir")):
        assert cli.main(["replay", "--backend", "interpreter", str(path)]) == 0
    assert "matches the reference" in capsys.readouterr().out


def test_what_differs_is_reported(dumped: Path, monkeypatch) -> None:
    from polyfuse.reference.backend import Interpreted

    call = Interpreted.__call__

    def spoil(self, *args):
        call(self, *args)
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.is_floating_point():
                arg.view(-1)[:1] += 1

    monkeypatch.setattr(Interpreted, "__call__", spoil)
    found = replay((dumped / "graph.ir").read_text(), session(max_fusion_size=33))
    assert any("elements differ" in d.problem for d in found)


def test_what_a_text_does_not_hold_is_named() -> None:
    with pytest.raises(UnsupportedError, match="object"):
        replay(
            'graph g inference {\n  buffer x: input f32/float32 on "cpu" size [4] stride [1]\n'
            '  buffer y: temp f32/float32 on "cpu" size [4] stride [1]\n  input x: tensor\n'
            "  node call0 = extern object.f single {\n    results y\n    arg &x\n  }\n"
            "  output tensor &y\n}\n",
            session(),
        )
    with pytest.raises(UnsupportedError, match="give a graph or a kernel"):
        replay("index 3\n", session())


def test_a_file_that_is_not_there(capsys) -> None:
    assert cli.main(["replay", "nothing.ir"]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("guilty", [1, 2, 3, 5, 64, 1000, 99999])
def test_bisection(guilty: int) -> None:
    tried: list[int] = []

    def passes(fuel: int) -> bool:
        tried.append(fuel)
        return fuel < guilty

    assert first_failing(passes, 1 << 20) == guilty
    assert len(tried) < 60 and len(set(tried)) == len(tried)


def test_the_guilty_decision_is_read_from_the_dump(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "schedule.txt").write_text("fuse: a b: why\nrefuse: a c: no\nfuse: a+b d: because\n")
    (tmp_path / "g" / "rewrites.txt").write_text("remove-dead 7\nmerge-views 2\nremove-copies 1\n")
    assert [line.split(";")[0] for line in decisions(tmp_path, 2)] == [
        "g: rewrite merge-views",
        "g: fuse: a+b d: because",
    ]
    assert "rewrite remove-copies" in decisions(tmp_path, 3)[0]
    assert decisions(tmp_path, 4) == []


@pytest.mark.slow
def test_bisecting_a_program(tmp_path: Path, capsys) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from polyfuse.compiler.reports.report import last_reports\n"
        "options = {'backends': ['interpreter']}\n"
        "f = torch.compile(lambda x: torch.softmax(x, -1), backend='polyfuse', options=options)\n"
        "f(torch.randn(4, 8))\n"
        "sys.exit(last_reports()[0].kernels == 1)\n"
    )
    assert cli.main(["bisect", str(script)]) == 0
    out = capsys.readouterr().out
    assert "decision 2 is at fault" in out and "fuse: " in out
