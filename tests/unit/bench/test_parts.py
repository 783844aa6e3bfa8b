"""The parts of `polyfuse bench`, in this process."""

from __future__ import annotations

import json
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError, PolyfuseError
from polyfuse.bench.campaign import Measured, Point
from polyfuse.bench.child import Child
from polyfuse.bench.engine import EAGER, TORCH, Engine, parse_engines
from polyfuse.bench.machine import this_machine
from polyfuse.bench.statistics import latency, spark, speed_up
from polyfuse.bench.subject import load_subject
from polyfuse.bench.table import _cells, _fitting_table
from polyfuse.cli.bench import points, sweep_of


def load(name, arguments=(), sizes=None, training=False):
    return load_subject(str(name), arguments, sizes or {}, "", training)


def test_a_device_whose_module_says_neither_its_name_nor_its_memory(monkeypatch):
    module = SimpleNamespace(device_count=lambda: 2)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: SimpleNamespace(type="sim")
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert this_machine().devices == ("sim:0", "sim:1")
    child = Child(Engine(EAGER))
    child._device = "sim"
    assert child.memory() == {"bytes": 0, "what": ""}


@pytest.mark.parametrize(("width", "left_out"), [(80, {"over time", "per s", "peak MiB"}), (160, set())])
def test_numbers_are_shown_whole(width, left_out):
    measured = Measured("torch.compile", 87.12, 12.3, latency([[21.3e-6, 43.2e-6]] * 9), memory=439 << 20)
    measured.speed_up = speed_up([0.0213] * 9, [0.0432] * 9)
    measured.check = {"ok": True, "compared": 1, "error": 2.2e-7}
    console = Console(width=width, file=StringIO())
    console.print(_fitting_table(console, Point({}, "step", "cpu", [measured])))
    shown = console.file.getvalue()
    assert "…" not in shown
    for part in ("torch.compile", "87.1, 12.3", "0.0323 ±", "2.2e-07"):
        assert part in shown
    assert {heading for heading in ("over time", "per s", "peak MiB") if heading not in shown} == left_out


def test_large_numbers_have_no_exponent():
    measured = Measured("eager", latency=latency([[1.5513]] * 3))
    cells = _cells(measured, Point({"batch": 200_000}))
    assert cells["median ms"] == "1551 ±0%\n1551, 1551" and cells["per s"] == "128924"


class TestSweeps:
    def test_values(self):
        assert sweep_of("batch=1,2,4..64") == ("batch", (1, 2, 4, 8, 16, 32, 64))
        assert sweep_of("n=3..10") == ("n", (3, 6))

    @pytest.mark.parametrize("text", ["batch", "batch=", "batch=a", "1=2", "batch=1..x"])
    def test_what_is_none(self, text):
        with pytest.raises(InvalidOptionError, match=r"batch=1,2,4\.\.64"):
            sweep_of(text)

    def test_points(self):
        assert points([]) == [{}]
        assert points([("a", (1, 2)), ("b", (3,))]) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]


class TestEngines:
    def test_names(self):
        found = parse_engines("eager, torch.compile,polyfuse,toy@max-autotune,aot_eager", ["toy"])
        assert [e.compiler for e in found] == ["", TORCH, "polyfuse", "polyfuse", "aot_eager"]
        assert found[3] == Engine("toy@max-autotune", "polyfuse", ("toy",), "max-autotune")
        assert found[0].name == EAGER

    def test_what_is_none(self):
        with pytest.raises(BackendUnavailableError, match="did you mean toy"):
            parse_engines("tooy", ["toy"])
        with pytest.raises(InvalidOptionError, match="max-autotune"):
            parse_engines("polyfuse@fast", [])


class TestStatistics:
    def test_latency(self):
        found = latency([[0.001] * 50, [0.001] * 49 + [0.1]])
        assert (
            found.calls == 100 and found.median == 1.0 and found.least == 1.0 and found.p99 > found.p90 == 1.0
        )
        assert found.spread == 0 and found.turns == (1.0, 1.0)

    def test_a_speed_up_comes_with_bounds(self):
        sure = speed_up([2.0, 2.1, 1.9, 2.0], [1.0, 1.0, 1.0, 1.0])
        assert sure.value == 2.0 and 1.9 <= sure.low <= sure.high <= 2.1 and sure.is_sure
        assert not speed_up([2.0, 1.0, 0.5, 1.1], [1.0, 1.0, 1.0, 1.0]).is_sure

    def test_spark(self):
        assert spark([]) == ""
        assert spark([1, 1.01]) == "▁▁", "noise is no mountain range"
        assert spark([1, 2]) == "▁█" and len(spark(range(100))) == 12


class TestPrograms:
    def test_the_first_compiled_call_is_caught(self, tmp_path, capsys):
        program = tmp_path / "program.py"
        program.write_text(
            "import sys, torch\n"
            "model = torch.nn.Linear(3, 4)\n"
            "other = torch.compile(lambda x: x)\n"
            "fast = torch.compile(model, mode='max-autotune')\n"
            "assert fast.weight is model.weight\n"
            "with torch.no_grad():\n"
            "    fast(torch.ones(int(sys.argv[2]), 3))\n"
            "raise SystemExit('not reached')\n"
        )
        before = torch.compile, list(sys.argv), list(sys.path)
        found = load(program, sizes={"batch": 5})
        assert found.args[0].shape == (5, 3) and isinstance(found.function, torch.nn.Linear)
        assert not found.grad and found.left_out == (f"<lambda> of {program}: one function is measured",)
        assert before == (torch.compile, sys.argv, sys.path)

    def test_a_decorated_function(self, tmp_path):
        (tmp_path / "p.py").write_text(
            "import torch\n@torch.compile(backend='polyfuse')\ndef f(x, *, y): return x * y\n"
            "f(torch.ones(2), y=3)\n"
        )
        found = load(tmp_path / "p.py")
        assert found.kwargs == {"y": 3} and found.grad and found.function(torch.ones(1), y=2).item() == 2

    def test_globals_where_nothing_is_compiled(self, tmp_path):
        (tmp_path / "p.py").write_text("import torch\nmodel = torch.sin\ninputs = torch.ones(2)\n")
        assert load(tmp_path / "p.py").function is torch.sin
        (tmp_path / "p.py").write_text("import sys\n")
        with pytest.raises(PolyfuseError, match="compile what is to be measured"):
            load(tmp_path / "p.py")
        (tmp_path / "p.py").write_text("import sys\nsys.exit(2)\n")
        with pytest.raises(PolyfuseError, match="status 2"):
            load(tmp_path / "p.py")
        with pytest.raises(PolyfuseError, match="no file"):
            load(tmp_path / "none.py")


class TestFunctions:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "measured_functions.py").write_text(
            "import torch\n"
            "def make(batch=2): return torch.sin, (torch.ones(batch),)\n"
            "def wrong(): return 3\n"
            "def needs(x): return x + 1\n"
            "class Holder: pass\n"
            "holder = Holder()\n"
            "holder.add = needs\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        yield
        sys.modules.pop("measured_functions", None)

    def test_makers_get_the_sizes(self):
        found = load("measured_functions:make", sizes={"batch": 7}, training=True)
        assert found.args[0].shape == (7,) and found.function is torch.sin and found.grad

    def test_example_inputs(self):
        with pytest.raises(PolyfuseError, match="nothing says which"):
            load("measured_functions:holder.add")
        sys.modules["measured_functions"].example_inputs = lambda n=1: {"x": torch.ones(n)}
        assert load("measured_functions:holder.add", sizes={"n": 4}).kwargs["x"].shape == (4,)

    @pytest.mark.parametrize("name", ["measured_functions:none", "no.such.module:f", "measured_functions"])
    def test_what_is_none(self, name):
        with pytest.raises(PolyfuseError):
            load(name)

    def test_a_maker_that_returns_something_else(self):
        with pytest.raises(PolyfuseError, match="return \\(function, args\\)"):
            load("measured_functions:wrong")


class TestTransformers:
    @pytest.fixture(autouse=True)
    def transformers(self):
        pytest.importorskip("transformers", reason="the extra `demo`")

    def test_a_model_of_a_type(self):
        small = "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=64,vocab_size=99"
        found = load(f"hf:bert,{small}", sizes={"batch": 2, "sequence": 8})
        assert found.kwargs["input_ids"].shape == (2, 8) and "1 layers" in found.about
        assert not any(p.requires_grad for p in found.function.parameters())

    def test_large_ones_are_refused_with_a_hint(self):
        with pytest.raises(PolyfuseError, match="billion parameters by default; make it smaller"):
            load("hf:LlamaForCausalLM")

    def test_what_is_none(self):
        with pytest.raises(PolyfuseError, match="knows no model"):
            load("hf:no_such_model")
        with pytest.raises(PolyfuseError, match="name=value"):
            load("hf:bert,nothing=3")


class TestChild:
    def child(self, tmp_path, text, engine=None, training=False):
        (tmp_path / "p.py").write_text(f"import torch\n{text}\n")
        child = Child(engine or Engine("other", "eager"))
        asked = {
            "subject": str(tmp_path / "p.py"),
            "arguments": [],
            "sizes": {},
            "device": "",
            "dynamic": None,
        }
        answer = child.load({**asked, "training": training})
        assert answer["device"] == "cpu"
        return child

    def test_runs(self, tmp_path):
        child = self.child(tmp_path, "torch.compile(torch.sin)(torch.ones(3))")
        assert child.compile()["seconds"] > 0 and len(child.run(4)["seconds"]) == 4
        assert child.memory()["bytes"] > 1 << 20
        assert child.check() == {"compared": True, "error": 0.0, "tolerance": 1e-3, "ok": True}

    def test_random_results_are_not_compared(self, tmp_path):
        child = self.child(tmp_path, "torch.compile(torch.rand_like)(torch.ones(3))")
        assert child.check()["compared"] is False

    def test_wrong_results_are_found(self, tmp_path):
        child = self.child(tmp_path, "torch.compile(torch.sin)(torch.ones(3))")
        child._call = lambda: torch.zeros(3)
        found = child.check()
        assert not found["ok"] and found["error"] == pytest.approx(1)
        child._call = lambda: torch.zeros(4)
        assert not child.check()["ok"]
        child._call = lambda: torch.full((3,), float("nan"))
        assert not child.check()["ok"]

    def test_training_computes_gradients(self, tmp_path):
        text = "m = torch.nn.Linear(2, 2)\ntorch.compile(m)(torch.ones(1, 2))"
        child = self.child(tmp_path, text, training=True)
        _, grads = child._call()
        assert [g.shape for g in grads] == [(2, 2), (2,)]

    def test_a_backend_of_polyfuse(self, tmp_path):
        engine = Engine("interpreter", "polyfuse", ("interpreter",))
        torch.compiler.reset()
        child = self.child(tmp_path, "torch.compile(torch.sin)(torch.ones(3))", engine)
        child.compile()
        assert child.check()["ok"]
        assert json.dumps(child.run(1))
