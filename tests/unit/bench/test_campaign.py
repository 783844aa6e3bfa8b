"""Whole campaigns of `polyfuse bench`: with children that only pretend, and once with real ones."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest

from polyfuse import cli
from polyfuse.bench import campaign
from polyfuse.bench.process import ChildError, ChildProcess

PROGRAM = "import torch\ntorch.compile(torch.sin)(torch.ones(8))\n"


class Pretending:
    """A child whose calls take the milliseconds of a table."""

    MILLISECONDS: ClassVar = {"eager": 2.0, "torch.compile": 1.0, "polyfuse": 4.0}
    alive: ClassVar[list[str]] = []

    def __init__(self, engine, folder):
        self.name = engine.name
        self.alive.append(engine.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.alive.remove(self.name)

    def ask(self, do, timeout, **more):
        seconds = self.MILLISECONDS.get(self.name)
        if seconds is None:
            raise ChildError("it cannot")
        return {
            "load": {
                "about": "a thing",
                "left_out": ["f of p.py: one function is measured"],
                "device": "cpu",
            },
            "compile": {"seconds": 3.0},
            "check": {"compared": True, "error": 1.0, "tolerance": 1e-3, "ok": self.name != "polyfuse"},
            "run": {"seconds": [seconds * 1e-3] * more.get("calls", 1)},
            "memory": {"bytes": 5 << 20, "what": "process"},
        }[do]


@pytest.fixture
def pretending(monkeypatch, tmp_path):
    (tmp_path / "p.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(campaign, "ChildProcess", Pretending)
    monkeypatch.setattr(campaign, "_MOST_TURNS", 6)
    yield
    assert not Pretending.alive


def bench(capsys, *arguments):
    status = cli.main(["bench", "p.py", *arguments])
    return status, capsys.readouterr().out


def test_engines_side_by_side(pretending, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    status, out = bench(capsys, "--engines", "torch.compile,polyfuse,interpreter")
    assert status == 1, "polyfuse differs"
    assert "2.00 x" in out and "0.50 x" in out and "DIFFERS" in out
    assert "not run: interpreter: it cannot" in out and "not run: f of p.py: one function is measured" in out
    assert "threads; torch" in out


def test_json_and_sweeps(pretending, capsys, tmp_path):
    file = tmp_path / "out.json"
    status, _ = bench(capsys, "--engines", "torch.compile", "--sweep", "batch=2..4", "--json", str(file))
    data = json.loads(file.read_text())
    assert status == 0 and [p["sizes"] for p in data["points"]] == [{"batch": 2}, {"batch": 4}]
    eager, other = data["points"][1]["engines"]
    assert eager["latency"]["median"] == 2.0 and len(eager["latency"]["milliseconds"]) == 6
    assert other["speed_up"] == {"value": 2.0, "low": 2.0, "high": 2.0} and other["throughput"] == 4000
    assert other["cold"] == other["warm"] == 3.0 and data["machine"]["cpus"] > 0
    status, out = bench(capsys, "--engines", "eager", "--json", "-")
    assert json.loads(out)["points"][0]["engines"][0]["engine"] == "eager"


def test_the_default_engines_and_what_is_left_out(pretending, capsys, monkeypatch):
    monkeypatch.setenv("POLYFUSE_DISABLE", "halide")
    _, out = bench(capsys, "--json", "-")
    data = json.loads(out)
    assert [e["engine"] for e in data["points"][0]["engines"]] == ["eager", "torch.compile", "cpp"]
    assert {"what": "halide", "why": "listed in the option `disable`"} in data["not_run"]


def test_a_budget_is_met_and_what_it_cost_is_reported(pretending, capsys, monkeypatch):
    clock = iter(range(0, 100_000, 5))
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    _, out = bench(
        capsys,
        "--engines",
        "torch.compile,polyfuse",
        "--sweep",
        "batch=1..8",
        "--budget",
        "1m",
        "--json",
        "-",
    )
    found = {item["why"] for item in json.loads(out)["not_run"]}
    assert "the budget was used up" in found


@pytest.mark.parametrize("load", [1.0, 4.0, 20.0])
def test_a_budget_is_met_on_a_busy_machine(pretending, capsys, monkeypatch, load):
    """Where every step takes so many seconds, an engine that would not be ready in time is left out, and the
    campaign ends soon after its minute: what eager mode needs is all that it may take more.
    """
    now, waits = [0.0], []
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ask = Pretending.ask

    def slow(self, do, timeout, **more):
        waits.append((self.name, timeout))
        now[0] += min(load, timeout)
        return ask(self, do, timeout, **more)

    monkeypatch.setattr(Pretending, "ask", slow)
    _, out = bench(capsys, "--engines", "torch.compile,polyfuse", "--budget", "60", "--json", "-")
    found = json.loads(out)
    left_out = [item["what"] for item in found["not_run"] if "budget" in item["why"]]
    assert left_out == {1.0: [], 4.0: ["polyfuse"], 20.0: ["torch.compile", "polyfuse"]}[load]
    assert now[0] <= 60 + 6 * load
    assert all(timeout <= 60 for _, timeout in waits)


def test_what_does_not_run_in_eager_mode(pretending, capsys, monkeypatch):
    monkeypatch.setattr(Pretending, "MILLISECONDS", {})
    assert cli.main(["bench", "p.py", "--engines", "polyfuse"]) == 1
    assert "it does not run in eager mode: it cannot" in capsys.readouterr().err


def test_a_busy_machine_is_warned_about(pretending, capsys, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (64.0, 0.0, 0.0))
    _, out = bench(capsys, "--engines", "eager", "--json", "-")
    assert "busy (load 64.0" in json.loads(out)["warnings"][0]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.parametrize("sweep", [[], ["--sweep", "batch=1..4"]])
def test_pictures(pretending, capsys, tmp_path, ending, sweep):
    pytest.importorskip("matplotlib", reason="the extra `bench`")
    file = tmp_path / f"out.{ending}"
    bench(capsys, "--engines", "torch.compile", "--plot", str(file), *sweep)
    assert file.read_bytes()[:5] == {"png": b"\x89PNG\r", "svg": b"<?xml"}[ending]


def test_a_real_child(tmp_path):
    from polyfuse.bench.engine import Engine

    (tmp_path / "p.py").write_text("print('not an answer')\n" + PROGRAM)
    asked = {"subject": str(tmp_path / "p.py"), "arguments": [], "sizes": {}, "device": "", "training": False}
    with ChildProcess(Engine("eager"), tmp_path / "cache") as child:
        assert child.ask("load", 300, **asked, dynamic=None)["about"].startswith("sin of ")
        assert len(child.ask("run", 300, calls=2)["seconds"]) == 2
        with pytest.raises(ChildError, match="no file"):
            child.ask("load", 300, **{**asked, "subject": "none.py"}, dynamic=None)
        (tmp_path / "p.py").write_text("import os\nos._exit(7)\n")
        with pytest.raises(ChildError, match="ended with status 7 during load"):
            child.ask("load", 300, **asked, dynamic=None)


@pytest.mark.slow  # another child; what becomes of late answers, those that only pretend show
def test_a_real_child_that_takes_too_long(tmp_path):
    from polyfuse.bench.engine import Engine

    (tmp_path / "p.py").write_text(PROGRAM)
    asked = {"subject": str(tmp_path / "p.py"), "arguments": [], "sizes": {}, "device": "", "training": False}
    with ChildProcess(Engine("eager"), tmp_path / "cache") as child:
        child.ask("load", 300, **asked, dynamic=None)
        with pytest.raises(ChildError, match="took more than"):
            child.ask("run", 0.0, calls=10**9)  # hours: no answer can win against the time limit


@pytest.mark.slow
def test_a_whole_campaign(tmp_path, capsys):
    (tmp_path / "p.py").write_text(PROGRAM)
    assert (
        cli.main(["bench", str(tmp_path / "p.py"), "--engines", "torch.compile,polyfuse", "--json", "-"]) == 0
    )
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert all(engine["latency"] for engine in point["engines"])
    assert all(engine["check"]["ok"] for engine in point["engines"][1:])
