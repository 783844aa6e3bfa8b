from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polyfuse
from polyfuse.base.errors import PolyfuseError
from polyfuse.cli import main
from polyfuse.compiler.reports import watch
from polyfuse.reporting.adopt import adopting
from polyfuse.reporting.collect import Collector
from polyfuse.reporting.compare import compare
from polyfuse.reporting.describe import describe
from polyfuse.reporting.page import page, read_report

OPTIONS = {"backends": ("interpreter",), "gemm": "library"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    model = Model()
    x = torch.randn(4, 16)
    reported = polyfuse.report(model, folder / "report.html", options=OPTIONS, json=folder / "report.json")
    written = reported(x)
    assert written.path == folder / "report.html"
    torch.testing.assert_close(written.result, model(x))
    stored: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(written.data)) == read_report(written.path)
    return stored


def test_training_gives_a_forward_and_a_backward(data: dict[str, Any]) -> None:
    assert [graph["kind"] for graph in data["graphs"]] == ["forward", "backward"]
    assert not data["breaks"] and not data["recompilations"] and not data["failed"]


def test_every_launch_and_call_was_measured(data: dict[str, Any]) -> None:
    for graph in data["graphs"]:
        assert graph["steps"]
        for step in graph["steps"]:
            assert step["ms"] > 0 and step["bytes"] > 0 and step["flops"] > 0, step["name"]
            assert step["sources"], step["name"]
        assert len(graph["timeline"]["events"]) == len(graph["steps"])
    (ceiling,) = data["ceilings"]
    assert ceiling["bandwidth"] > 0 and ceiling["operations"] > 0 and "measured" in ceiling["how"]


def test_a_matrix_product_has_its_operations(data: dict[str, Any]) -> None:
    products = [s for s in data["graphs"][0]["steps"] if s["type"] == "call"]
    assert [step["flops"] for step in products] == [2 * 4 * 16 * 32] * 2


def test_lines_of_the_model_are_linked_to_the_kernel(data: dict[str, Any]) -> None:
    forward = data["graphs"][0]
    step = next(s for s in forward["steps"] if "aten.relu.default" in s["ops"])
    kernel = data["kernels"][step["kernel"]]
    lines = {data["sources"][n]["code"] for row in kernel["source_links"] for n in row}
    assert lines == {"return x + self.down(torch.relu(self.up(self.norm(x))))"}
    file = data["files"][data["sources"][step["sources"][0]]["file"]]
    assert file["path"] == __file__ and any("class Model" in text for _, text in file["parts"])


def test_stages_add_up_to_the_total_cold_and_warm(data: dict[str, Any]) -> None:
    for times in data["times"].values():
        assert times["total"] == pytest.approx(sum(seconds for _, seconds in times["stages"]))
    assert {"tracing", "autograd", "lower", "fuse", "building"} <= dict(
        data["times"]["cold"]["stages"]
    ).keys()
    assert data["times"]["cold"]["compiled"] == 2


def test_refused_fusions_have_reasons_and_ends(data: dict[str, Any]) -> None:
    for graph in data["graphs"]:
        for pair in graph["refused"]:
            assert pair["reason"] and pair["first"] < pair["second"] < len(graph["steps"])
    assert any(graph["refused"] for graph in data["graphs"])


def test_memory_is_beside_that_of_eager_mode(data: dict[str, Any]) -> None:
    for graph in data["graphs"]:
        memory = graph["memory"]
        assert memory["peak"] > 0 and memory["eager"]["peak"] > 0
        assert memory["peak_step"] < memory["steps"] == len(graph["steps"])


def test_no_text_of_the_user_is_markup(data: dict[str, Any]) -> None:
    nasty = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)>"
    text = page({**data, "title": nasty})
    assert nasty not in text and "<img" not in text.partition("<body>")[2].partition("<script>")[0]
    assert text.count("</script>") == 2, "that of the data and that of the page"


def test_a_report_can_be_compared_with_itself_and_another(data: dict[str, Any]) -> None:
    same = compare(data, data)
    assert all(old == new for _, old, new in same["totals"])
    assert {row["state"] for row in same["kernels"]} == {"same"}
    fewer = {
        **data,
        "graphs": data["graphs"][:1],
        "breaks": [{"reason": "a print", "source": None, "count": 2}],
    }
    found = compare(fewer, data)
    assert {"new", "same"} <= {row["state"] for row in found["kernels"]}
    assert found["breaks"] == {"gone": ["a print"], "new": []}
    assert ["graphs", 1, 2] in found["totals"]


def test_what_is_no_report_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    other = tmp_path / "other.html"
    other.write_text("<html></html>")
    with pytest.raises(PolyfuseError, match="no report"):
        read_report(other)
    old = tmp_path / "old.json"
    old.write_text(json.dumps({**data, "format": 99}))
    with pytest.raises(PolyfuseError, match="format 99"):
        read_report(old)


def test_breaks_recompilations_and_fallbacks_have_causes(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return torch.special.airy_ai(y)

    def several(x: torch.Tensor) -> torch.Tensor:
        return function(x) + function(x[:, :2])[:, :1]

    found = polyfuse.report(several, tmp_path / "report.html", options=OPTIONS)(torch.randn(3, 4)).data
    assert sum(item["count"] for item in found["breaks"]) >= 1
    line = found["sources"][found["breaks"][0]["source"]]
    assert line["code"] == "torch._dynamo.graph_break()"
    fallbacks = [f for graph in found["graphs"] for f in graph["fallbacks"]]
    assert {f["op"] for f in fallbacks} == {"aten.special_airy_ai.default"} and fallbacks[0]["reason"]
    assert {s["type"] for graph in found["graphs"] for s in graph["steps"]} >= {"kernel", "fallback"}


def test_nothing_is_collected_without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile asks whether somebody watches, a fixed number of times, and wraps no kernel."""
    asked = []
    monkeypatch.setattr(
        watch, "nullcontext", lambda: asked.append(1) or __import__("contextlib").nullcontext()
    )
    kernels: dict[str, Any] = {}
    assert watch.entries_for(kernels) is kernels
    options = {**OPTIONS, "graph_cache": False}
    compiled = torch.compile(lambda x: x.sin() + 1, backend="polyfuse", options=options)
    compiled(torch.randn(4))
    compiled(torch.randn(4))
    assert len(asked) == 2, "once for the capture and once for its graph"


PROGRAM = """
import sys
import torch

@torch.compile(backend="polyfuse", options={"backends": ("interpreter",)})
def function(x):
    return torch.relu(x) * 2

function(torch.randn(int(sys.argv[1])))
print("the program's own output")
if len(sys.argv) > 2:
    raise ValueError("a fault of the program")
"""


@pytest.mark.slow
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    assert main(["report", "--json", "old.json", "program.py", "--", "5"]) == 0
    assert capfd.readouterr().out.count("the program's own output") == 2
    first = read_report(Path("polyfuse-report.html"))
    assert first["times"]["warm"]["read"] == 1 and first["title"] == "program.py 5"
    assert (
        main(["report", "-o", "new.html", "--once", "--compare", "old.json", "program.py", "7", "fail"]) == 1
    )
    second = read_report(Path("new.html"))
    assert second["status"] == 1 and second["graphs"][0]["steps"], "what was compiled until then is there"
    assert second["times"]["warm"] is None and second["compare"]["old"]["title"] == "program.py 5"


def test_a_program_that_is_not_there() -> None:
    assert main(["report", "nowhere.py"]) == 1


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "polyfuse report train.py" in capsys.readouterr().out


@pytest.mark.slow
def test_graphs_of_one_number_keep_their_own_memory(tmp_path: Path) -> None:
    """After a reset, Dynamo counts from 0 again."""
    collector = Collector()
    with collector.watching():
        for x in (torch.randn(8), torch.randn(8, requires_grad=True)):
            torch._dynamo.reset()
            # a stored graph, perhaps of another test, brings nothing of eager mode's memory along
            options = {**OPTIONS, "graph_cache": False}
            compiled = torch.compile(lambda x: x.sin().exp(), backend="polyfuse", options=options)
            result = compiled(x)
            if x.requires_grad:
                result.sum().backward()
    found = describe(collector, "two graphs")["graphs"]
    assert [graph["name"] for graph in found] == ["inference_0_0", "forward_0_0", "backward_0_0"]
    assert all(graph["memory"]["eager"]["peak"] > 0 for graph in found)


@pytest.mark.slow
def test_a_native_host_program_is_measured_in_its_python_form(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.sin(), -1)

    options = {"native_host": True, "backends": ("cpp",), "gemm": "library"}
    found = polyfuse.report(function, tmp_path / "report.html", options=options)(torch.randn(8, 8)).data
    (graph,) = found["graphs"]
    assert all(step["ms"] > 0 for step in graph["steps"])
    assert graph["host"].startswith("Python: a report measures")


def test_a_program_that_knows_nothing_of_polyfuse_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_BACKENDS", "interpreter")
    collector = Collector()
    model, x = Model(), torch.randn(4, 16)
    wanted = model(x)
    before = torch.compile, torch.nn.Module.__call__
    with collector.watching(), adopting():
        found = model(x)
        found.sum().backward()
        with torch.no_grad():
            nn.Sequential(nn.ReLU(), nn.ReLU())(x)
        again = torch.compile(lambda x: x.sin() * 2)(x)
    assert (torch.compile, torch.nn.Module.__call__) == before
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(again, x.sin() * 2)
    kinds = [item.report.kind for item in collector.graphs]
    assert kinds == ["forward", "backward", "inference", "inference"], "modules inside are parts of it"
