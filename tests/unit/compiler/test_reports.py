"""What the compiler tells about its work: reports, `explain`, dumps, observers of decisions."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import polyfuse
from polyfuse import cli
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import (
    GraphReport,
    LaunchReport,
    Provider,
    last_reports,
    reset_reports,
)
from polyfuse.compiler.reports.summary import TABLES
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text

SCRIPT = """
import sys
import torch

def model(x, y):
    return torch.softmax(x + y, -1), torch.linalg.lu_factor(x.double() @ x.double().t())[0]

compiled = torch.compile(model, backend="polyfuse", options={"backends": ["interpreter"]})
compiled(torch.randn(4, 8), torch.randn(8))
sys.exit(int(sys.argv[1]))
"""


BROKEN = """
import torch


@torch.compile(backend="polyfuse", options={"backends": ["interpreter"]})
def step(x):
    y = torch.softmax(x * 2, -1)
    print("broken")
    return torch.special.airy_ai(y).cumsum(0)


for size in (4, 5):
    step(torch.randn(size, 8))
"""


@pytest.fixture(autouse=True)
def without_what_the_command_sets(monkeypatch):
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    reset_reports()
    yield
    reset_reports()


def compiled(function, *args, **options):
    with torch.no_grad():
        return torch.compile(function, backend="polyfuse", options={"backends": ("interpreter",), **options})(
            *args
        )


def test_a_report_counts_what_was_made() -> None:
    compiled(lambda x: torch.softmax(x * 2, -1) @ x.t(), torch.randn(4, 8))
    (report,) = last_reports()
    assert (report.kernels, report.distinct_kernels, report.extern_calls) == (1, 1, 1)
    assert report.aten_ops >= 4 and not report.fallbacks and not report.eager
    assert report.bytes_after < report.bytes_before
    stages = ["lower", "claim", "autotune", "fuse", "generate", "plan", "load"]
    assert [name for name, _ in report.stage_seconds] == stages
    (launch,) = report.launches
    assert launch.backend == "interpreter" and "aten._softmax.default" in launch.ops
    assert "test_reports.py" in launch.sources[0]
    assert report.calls == ("aten.mm.out",)


def test_the_explanation_names_kernels_calls_and_reasons() -> None:
    compiled(lambda x: ((x + 1).cos(), (x[1:] + 1).sum(0), torch.linalg.det(x)), torch.randn(8, 8))
    shown = explain()
    assert "launches of" in shown and "memory traffic" in shown and "seconds: lower" in shown
    assert "kernels:\n    1. fused_" in shown and "(interpreter, " in shown
    assert "1 and 2: " in shown, "why the two kernels are two"
    assert "x: one starts" not in shown or "element" in shown


def test_the_explanation_says_why_an_operator_is_called() -> None:
    def gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        _, at = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        rest = ([3, 3], [2, 2], [1, 1], [1, 1], False)
        return torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *rest, at)

    images = [torch.randn(2, 3, n, n).contiguous(memory_format=torch.channels_last) for n in (4, 8)]
    compiled(gradient, *images)
    title, why = "called because eager mode's kernel is faster:", "it adds faster than 4 windows are read"
    assert (
        f"{title}\n    aten.max_pool2d_with_indices_backward.default: with the channels last, {why}"
        in explain()
    )


def test_nothing_compiled_and_eager_graphs_are_said_so() -> None:
    assert explain() == "nothing was compiled with Polyfuse\n"
    assert "run in eager mode: because" in explain([GraphReport("g", "inference", 3, eager="because")])


def test_a_failing_stage_is_reported(monkeypatch, caplog) -> None:
    from polyfuse.compiler import stages

    def broken(*args, **kwargs):
        raise RuntimeError("lost")

    monkeypatch.setattr(stages, "schedule_graph", broken)
    x = torch.randn(4)
    with caplog.at_level(logging.WARNING, "polyfuse"):
        torch.testing.assert_close(compiled(lambda x: x.exp() + 1, x), x.exp() + 1)
    assert last_reports()[0].eager == "RuntimeError: lost"
    with pytest.raises(Exception, match="lost"):
        torch._dynamo.reset()
        compiled(lambda x: x.exp() + 2, x, strict=True)


def test_explain_runs_a_program_and_keeps_its_status(tmp_path: Path, capsys) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert cli.main(["explain", str(script), "3"]) == 3
    out = capsys.readouterr().out
    assert "graph " in out and "aten.linalg_lu_factor" in out
    assert cli.main(["explain", str(tmp_path / "none.py")]) == 1


def test_what_matters_comes_first(tmp_path: Path, capsys) -> None:
    """Five lines, costs, fallbacks, hints; then each graph."""
    script = tmp_path / "script.py"
    script.write_text(BROKEN)
    assert cli.main(["explain", str(script)]) == 0
    out = capsys.readouterr().out
    heads = [line.split()[0] for line in out.splitlines()[2:7]]
    assert heads == ["graphs", "kernels", "calls", "compiled", "seconds"]
    assert re.search(r"^graphs +4 \(4 inference\), 2 graph breaks: .+script\.py:8$", out, re.MULTILINE)
    assert "by interpreter 4" in out and "2 operators in eager mode (aten.special_airy_ai.default)" in out
    seconds = re.search(r"^seconds +([\d.]+): tracing ([\d.]+), .*", out, re.MULTILINE)
    assert seconds is not None and float(seconds[1]) >= float(seconds[2]) > 0
    assert "costliest kernels and calls (measured)" in out
    assert "2 x aten.special_airy_ai.default: it has no lowering" in out
    assert "step was compiled 2 times: dimension 0 of x changed; mark it dynamic" in out
    assert "step after line 8 was compiled 2 times" in out and "a graph break at " in out


def test_a_function_is_explained_in_python() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    found = polyfuse.explain(lambda x: x.sin() @ x.t(), options={"backends": ["interpreter"]})(x)
    torch.testing.assert_close(found.result, x.sin() @ x.t())
    assert [graph.kind for graph in found.graphs] == ["forward", "backward"] and x.grad is None
    assert found.data["graphs"] == {"forward": 1, "backward": 1} and found.data["breaks"] == []
    assert str(found).startswith("graphs    2 (1 forward, 1 backward), 0 graph breaks\nkernels   ")


@pytest.mark.slow
def test_the_overview_as_json(tmp_path: Path, capsys) -> None:
    script = tmp_path / "script.py"
    script.write_text(BROKEN)
    assert cli.main(["explain", "--json", str(script)]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert "broken" in captured.err, "what the program prints goes elsewhere"
    assert data["overview"]["graphs"] == {"inference": 4} and len(data["overview"]["breaks"]) == 1
    assert sum(row["share"] for row in data["overview"]["costliest"]) <= 1.001
    names = [launch["name"] for graph in data["graphs"] for launch in graph["launches"]]
    assert all(re.fullmatch(r"fused_\w+_\d+", name) for name in names)


def test_a_refused_fusion_that_would_save_much_is_reported(tmp_path: Path, capsys) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "f = lambda x: ((x + 1).cos(), (x[1:] + 1).sum(0))\n"
        "torch.compile(f, backend='polyfuse', options={'backends': ['interpreter']})(torch.randn(8, 8))\n"
    )
    cli.main(["explain", str(script)])
    out = capsys.readouterr().out
    refused = out.partition("refused fusions that would save more than 1%")[2]
    assert re.search(r"\d+%  fused_\w+_0 and fused_\w+_1: ", refused)


def test_lists_are_cut_by_launches(monkeypatch, capsys) -> None:
    launch = LaunchReport("k", Provider("toy"), (), ("aten.sin.default",), ("a", "b"), 8, name="k_0")
    report = GraphReport("g", "inference", 40, kernels=40, launches=(launch,) * 40)
    shown = explain([report])
    assert shown.count("k_0 (toy") == 24 and "and 16 launches more; `polyfuse explain --all`" in shown
    assert explain([report], everything=True).count("k_0 (toy") == 40


def test_dumps_hold_every_stage_and_parse(tmp_path: Path) -> None:
    compiled(
        lambda x: torch.softmax(x, -1) @ x.t(), torch.randn(4, 8), dump=str(tmp_path), benchmark_harness=True
    )
    (folder,) = tmp_path.iterdir()
    names = {p.name for p in folder.iterdir()}
    assert names >= {"aten.txt", "graph.ir", "schedule.txt", "schedule.dot", "kernel0.ir", "program.py"}
    for name in ("graph.ir", "kernel0.ir"):
        content = (folder / name).read_text()
        assert text(parse(content), comments=False) == text(parse(text(parse(content))), comments=False)
    assert "digraph" in (folder / "schedule.dot").read_text()
    assert "__main__" in (folder / "program.py").read_text()


def test_dumps_hold_the_graph_before_and_after_each_pass(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    compiled(lambda x: torch.softmax((x * 1).view(4, 8).view(8, 4), -1).exp(), x, dump=str(tmp_path))
    (folder,) = tmp_path.iterdir()
    for stage, name in (("rewrites", "merge-views"), ("schedule", "fusion")):
        passes = sorted(p.name for p in (folder / f"{stage}-passes").iterdir())
        (before, *_), (after, *_) = (
            [p for p in passes if p.endswith(f"{name}.{side}.txt")] for side in ("before", "after")
        )
        texts = [(folder / f"{stage}-passes" / p).read_text() for p in (before, after)]
        assert texts[0] != texts[1] and all(texts)
    # the fused units hold the nodes that were units of their own
    assert len(texts[1].splitlines()) < len(texts[0].splitlines())


def test_tables_grow_with_each_graph(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, folder = torch.randn(4, 8), tmp_path / "tables"
    for scale in (2, 3):
        compiled(lambda x, scale=scale: torch.softmax(x, -1) * scale, x, metric_tables=str(folder))
    found = {}
    for name, columns in TABLES.items():
        with open(folder / f"{name}.csv", newline="") as stream:
            reader = csv.DictReader(stream)
            found[name] = list(reader)
        assert tuple(reader.fieldnames or ()) == columns
    assert [row["launches"] for row in found["graphs"]] == ["1", "1"]
    assert int(found["graphs"][0]["bytes_after"]) > 0 and int(found["graphs"][0]["fused"]) > 0
    assert [(row["launch"], row["backend"]) for row in found["kernels"]] == [("0", "interpreter")] * 2
    assert "aten._softmax.default" in found["kernels"][0]["operators"]
    (tmp_path / "file").write_text("")
    compiled(torch.exp, x, metric_tables=str(tmp_path / "file"))
    assert "no tables are written" in caplog.text


def test_structured_traces_hold_every_stage() -> None:
    """What `TORCH_TRACE` writes."""
    found: dict[str, tuple[dict, str]] = {}

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            name = record.metadata.get("artifact", {}).get("name", "")  # type: ignore[attr-defined]
            if name.startswith("polyfuse_"):
                found[name] = record.metadata, record.payload  # type: ignore[attr-defined]

    log, collect = logging.getLogger("torch.__trace"), Collect()
    log.addHandler(collect)
    try:
        x = torch.randn(4, 8)
        torch.testing.assert_close(compiled(lambda x: torch.softmax(x * 1, -1), x), x.softmax(-1))
    finally:
        log.removeHandler(collect)
    names = ("aten.txt", "graph.ir", "schedule.txt", "kernel0.ir", "program.py")
    assert {f"polyfuse_{name}" for name in names} <= found.keys()
    assert all(metadata["frame_id"] == 0 and payload for metadata, payload in found.values())
    parse(found["polyfuse_graph.ir"][1])
    assert any(name.endswith("-remove-neutral-arithmetic.after.txt") for name in found)


@pytest.fixture
def torch_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[logging.LogRecord]]]:
    """Sets artifacts of `TORCH_LOGS`, and returns the messages that follow, by artifact."""
    found: list[logging.LogRecord] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    collect = Collect()

    def asked(*artifacts: str) -> list[logging.LogRecord]:
        torch._logging.set_logs(**dict.fromkeys(artifacts, True))  # which forgets handlers
        logging.getLogger("torch").addHandler(collect)
        return found

    yield asked
    torch._logging.set_logs()
    logging.getLogger("torch").removeHandler(collect)


def _not_lowered(x: torch.Tensor) -> torch.Tensor:
    return torch.special.airy_ai(torch.softmax(x * 2, -1) + x.sum(-1, keepdim=True))


def test_torchs_logs_show_code_schedule_fusion_and_hints(torch_logs) -> None:
    found = torch_logs("output_code", "schedule", "fusion", "perf_hints")
    x = torch.randn(4, 8)
    compiled(_not_lowered, x, backends=["interpreter"])
    messages: dict[str, str] = {}
    for record in found:
        if record.name.startswith("torch.polyfuse."):
            artifact = record.name.rpartition(".__")[2]
            messages[artifact] = messages.get(artifact, "") + record.getMessage()
    assert "def call(" in messages["output_code"]
    assert "launch " in messages["schedule"]
    assert "fuse " in messages["fusion"]
    assert "airy_ai" in messages["perf_hints"]


def test_torchs_logs_are_quiet_unless_asked(torch_logs) -> None:
    found = torch_logs()
    compiled(lambda x: x.cos().sum(), torch.randn(4, 8), backends=["interpreter"])
    assert not [record for record in found if record.name.startswith("torch.polyfuse.")]


def test_a_text_that_cannot_be_made_costs_only_itself(tmp_path: Path, monkeypatch) -> None:
    from polyfuse.compiler import stages

    def broken(schedule):
        raise ValueError("no pen")

    monkeypatch.setattr(stages, "dot", broken)
    x = torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(lambda x: torch.softmax(x, -1), x, dump=str(tmp_path), strict=True), x.softmax(-1)
    )
    (folder,) = tmp_path.iterdir()
    assert "ValueError: no pen" in (folder / "schedule.dot").read_text()
    assert "launch" in (folder / "schedule.txt").read_text() and (folder / "program.py").exists()


def test_a_dump_that_cannot_be_written_costs_only_itself(tmp_path: Path, warnings_seen) -> None:
    (tmp_path / "file").touch()
    x = torch.randn(4, 8)
    found = compiled(lambda x: torch.softmax(x, -1), x, dump=str(tmp_path / "file"), strict=True)
    torch.testing.assert_close(found, x.softmax(-1))
    (warning,) = warnings_seen()
    assert "nothing is dumped" in warning and "`dump`" in warning


@pytest.mark.slow
def test_dumping_changes_nothing(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    for options in ({}, {"dump": str(tmp_path)}):
        torch._dynamo.reset()
        compiled(lambda x: torch.softmax(x * 2, -1) @ x.t(), x, **options)
    first, second = last_reports()
    assert (first.launches, first.decisions, first.calls) == (second.launches, second.decisions, second.calls)
    assert (first.kernels, first.distinct_kernels) == (second.kernels, second.distinct_kernels)


def test_the_option_log_sets_levels() -> None:
    logger = logging.getLogger("polyfuse.cache")
    before = logger.level
    root = logging.getLogger("polyfuse")
    handlers, propagate = list(root.handlers), root.propagate
    try:
        forget_sessions()
        session_for(Settings.resolve(None, {"log": "cache=debug"}))
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)
        root.handlers[:], root.propagate = handlers, propagate
        forget_sessions()
