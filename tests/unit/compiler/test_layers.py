"""A graph of equal layers is compiled from a few of them, and becomes what it does when all are seen."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.base.errors import InputLayoutError
from polyfuse.base.settings import Settings
from polyfuse.compiler import stages
from polyfuse.compiler.built import BuiltGraph
from polyfuse.compiler.layers import repeats, shortened
from polyfuse.compiler.layers.names import Matching, Numbering
from polyfuse.compiler.session import CompileSession, session_for
from polyfuse.frontend.graph import AtenGraph, GraphInput, GraphOutput
from polyfuse.frontend.periods import NotRepeated, periods_of
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import View
from polyfuse.ir.records import changed
from polyfuse.program import Program
from polyfuse.runtime.explain import shown_name
from polyfuse.schedule import Call, Schedule
from unrolled import as_it_runs


class _Layer(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm, self.first, self.second = (
            nn.LayerNorm(width, eps),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.first(self.norm(x))))


class _Attention(nn.Module):
    """A layer that all give a mask to, and that scales its result by a number of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(width, 3 * width), nn.RMSNorm(width)
        self.scale = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(self.norm(x)).unsqueeze(0).unsqueeze(0).chunk(3, -1)
        return x + self.scale * nn.functional.scaled_dot_product_attention(q, k, v, mask)[0, 0]


class _Masked(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Attention(8) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x.sum(-1)[:, None] > x.sum(-1)).float()
        for layer in self.layers:
            x = layer(x, mask)
        return x


class _Both:
    """Every graph that is compiled, compiled once more with all of its layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.same: list[bool] = []
        self.left_out: list[int] = []
        self.loops: list[bool] = []
        printed: list[Program] = []
        plain, expand, print_text = stages.compile_whole, repeats.with_periods, stages.python_text

        def compile_both(aten: AtenGraph, session: CompileSession, *rest: Any) -> Any:
            built, all_of_it = plain(aten, session, *rest), copy(session)
            all_of_it.settings = session.settings.with_options(repeated_layers="off")
            other = plain(aten, all_of_it, *rest)
            self.same.append(_text(built.schedule) == _text(other.schedule))
            self.same.append(print_text(built.program) == other.module.text)
            self.same.append(as_it_runs(printed[-2]) == as_it_runs(printed[-1]))
            self.same.append(_facts(printed[-2]) == _facts(printed[-1]))
            self.loops.append(printed[-2].loop is not None)
            self.same.append(_moved(built) == _moved(other))
            return built

        def noted(short: Any, aten: AtenGraph, schedule: Schedule) -> Any:
            found = expand(short, aten, schedule)
            self.left_out.append(short.periods.skipped)
            return found

        def keep(program: Program, **rest: Any) -> str:
            printed.append(program)
            return print_text(program, **rest)

        monkeypatch.setattr(stages, "compile_whole", compile_both)
        monkeypatch.setattr(stages, "with_periods", noted)
        monkeypatch.setattr(stages, "python_text", keep)
        monkeypatch.setattr("polyfuse.compiler.compile.compile_repeated", lambda *rest: None)

    def run(self, network: nn.Module, x: torch.Tensor, training: bool = False, **options: Any) -> None:
        """Compare what a network gives with eager mode, and what it becomes with what all of it becomes."""
        torch._dynamo.reset()
        compiled = torch.compile(network, backend="polyfuse", options={"graph_cache": False, **options})
        with torch.set_grad_enabled(training):
            result, expected = compiled(x), network(x)
            torch.testing.assert_close(result, expected)
            if training:
                # squares of what was normalized would have gradients of nothing but rounding
                seed, parameters = torch.randn_like(result), list(network.parameters())
                made = torch.autograd.grad(result, parameters, seed)
                wanted = torch.autograd.grad(expected, parameters, seed)
                torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-4)
        assert self.same and all(self.same)


def _text(schedule: Schedule) -> list[object]:
    """The steps of a schedule, with what they come from, and when memory is free."""
    steps = [
        (step.node, step.node.origins, step.reads, step.writes)
        if isinstance(step, Call)
        else (
            step.kernel,
            step.operands,
            step.nodes,
            [n.origins for n in step.nodes],
            step.inplace,
            step.backend,
        )
        for step in schedule.steps
    ]
    graph = schedule.graph
    return [steps, schedule.last_use, schedule.removed, graph.outputs, graph.inputs, sorted(graph.buffers)]


def _facts(program: Program) -> list[object]:
    """What else a program is made of than steps."""
    kernels = [(item.name, item.kernel, item.backend) for item in program.kernels]
    return [program.inputs, program.checks, program.constants, program.views, kernels]


def _moved(built: BuiltGraph) -> list[object]:
    """What the report says that each launch and call reads and writes, where they are the same."""
    report = built.report
    moved = sorted((launch.nodes, launch.nbytes, launch.ops, launch.sources) for launch in report.launches)
    return [moved, sorted(report.calls), report.bytes_before, report.bytes_after]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> _Both:
    return _Both(monkeypatch)


def _chain(depth: int, change: Callable[[int], nn.Module] = lambda at: _Layer(8)) -> nn.Module:
    return nn.Sequential(*map(change, range(depth)))


def _traced(depth: int, change: Callable[[int], float] = lambda at: 2.0) -> AtenGraph:
    """A graph of equal layers, each with a matrix of its own, but for a number."""

    def layers(x: torch.Tensor, *matrices: torch.Tensor) -> tuple[torch.Tensor]:
        for at, matrix in enumerate(matrices):
            found = torch.mm(x, matrix)
            x = found.sin().mul(change(at)).add(x.exp()).sub(x.tanh()).div(found.amax(1, True)).neg().cos()
        return (x,)

    return _graph(layers, [(4, 4)] * (depth + 1))


def _of_widths(widths: list[int]) -> AtenGraph:
    """A graph of the same operators again and again, on matrices from each width to the next one."""

    def layers(x: torch.Tensor, *matrices: torch.Tensor) -> tuple[torch.Tensor]:
        for matrix in matrices:
            x = torch.mm(x, matrix).sin().mul(2.0).exp().tanh().neg().cos().abs()
        return (x,)

    return _graph(layers, [(4, widths[0]), *pairwise(widths)])


def _graph(layers: Callable[..., Any], shapes: list[tuple[int, int]]) -> AtenGraph:
    mode = FakeTensorMode()
    with mode:
        given = [torch.empty(shape) for shape in shapes]
    module = make_fx(layers, tracing_mode="real")(*given)
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    inputs = tuple(
        GraphInput(at, node.name, "tensor", node.meta["val"], False, False, False)
        for at, node in enumerate(nodes)
    )
    (result,) = module.graph.output_node().args[0]
    outputs = (GraphOutput(0, "tensor", result.name, result.meta["val"], False),)
    return AtenGraph("layers", "inference", module, inputs, outputs, mode, None)


def _schedules(aten: AtenGraph) -> tuple[Schedule, Schedule]:
    """From all layers, and from a few."""
    found = []
    for wanted in ("off", "auto"):
        session = session_for(
            Settings.resolve(None, {"backends": ["interpreter"], "repeated_layers": wanted})
        )
        found.append(stages.compile_whole(aten, session).schedule)
    return found[0], found[1]


def test_layers_run_in_a_loop_that_gives_up_their_inputs_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[Program] = []
    print_text = stages.python_text

    def keep(program: Program, **rest: Any) -> str:
        programs.append(program)
        return print_text(program, **rest)

    monkeypatch.setattr(stages, "python_text", keep)
    short, whole = (
        stages.compile_whole(
            _traced(9),
            session_for(Settings.resolve(None, {"backends": ["interpreter"], "repeated_layers": wanted})),
        )
        for wanted in ("auto", "off")
    )
    assert [program.loop is not None for program in programs] == [True, False]
    assert as_it_runs(programs[0]) == as_it_runs(programs[1]) == as_it_runs(short.program)
    given = torch.randn(10, 4, 4)
    one, two = _alive(short, given), _alive(whole, given)
    assert torch.equal(one[0], two[0]) and one[1] == two[1] and sum(one[1][-1]) < 3


def _alive(built: BuiltGraph, given: torch.Tensor) -> tuple[torch.Tensor, list[list[bool]]]:
    """What a program makes of copies of its inputs, and which of them are there at each product."""
    inputs = [one.clone() for one in given.unbind()]
    known, alive = [weakref.ref(one) for one in inputs], list[list[bool]]()
    multiply = built.module.namespace["aten_mm_out"]

    def noted(*args: Any, **out: Any) -> None:
        alive.append([one() is not None for one in known])
        multiply(*args, **out)

    built.module.namespace["aten_mm_out"] = noted
    (result,) = built.module(inputs)
    return result, alive


@pytest.mark.quick(1)
@pytest.mark.parametrize("odd", [-1, 5])
def test_layers_that_are_left_out_become_what_they_would_have_become(odd: int) -> None:
    whole, short = _schedules(_traced(9, lambda at: 3.0 if at == odd else 2.0))
    assert _text(whole) == _text(short)
    assert ("repeat" in [item.kind for item in short.decisions]) == (odd < 0)


def test_an_input_of_a_layer_in_a_loop_that_is_not_as_it_was_is_named() -> None:
    session = session_for(Settings.resolve(None, {"backends": ["interpreter"]}))
    module = stages.compile_whole(_traced(9), session).module
    text = module.text.splitlines()
    # one check in each turn, and those of the layers in front and behind
    assert sum("assert_size_stride(" in line for line in text) < 8
    assert module.namespace["INPUTS"] == _executed(module.text)["INPUTS"]
    given = torch.randn(10, 4, 4)
    (expected,) = module([one.clone() for one in given.unbind()])
    names = [row[0] for row in module.namespace["INPUTS"]]
    for at, name in enumerate(names):
        inputs = [one.clone() for one in given.unbind()]
        inputs[at] = inputs[at].T
        with pytest.raises(InputLayoutError, match=rf"input {shown_name(module.namespace, name)} has size"):
            module(inputs)
    (again,) = module([one.clone() for one in given.unbind()])
    assert torch.equal(again, expected)


def _executed(text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace


def test_steps_of_layers_in_a_loop_are_made_when_somebody_looks_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[repeats.Expansion] = []
    schedule_all = repeats.Expansion._schedule

    def noted(expansion: repeats.Expansion) -> Schedule:
        made.append(expansion)
        return schedule_all(expansion)

    monkeypatch.setattr(repeats.Expansion, "_schedule", noted)
    session = session_for(Settings.resolve(None, {"backends": ["interpreter"], "verify": 0}))
    built = stages.compile_whole(_traced(9), session)
    assert built.program.loop is None and len(made) == 1  # asked for here
    steps = built.schedule.steps
    assert len(made) == 1 and len(built.layers.few.steps) < len(steps)
    assert built.report.extern_calls + built.report.kernels == len(steps)
    assert [item.kind for item in built.report.decisions].count("repeat") == 1


def test_layers_whose_fusions_are_timed_are_all_scheduled() -> None:
    traced = _traced(9)
    for timed in (False, True):
        settings = Settings.resolve(None, {"benchmark_fusion": timed})
        assert bool(list(shortened(traced, settings, True))) is not timed


def test_names_that_do_not_go_on_evenly_are_no_names_of_equal_layers() -> None:
    numbering = Numbering([{"buf": 4}, {"buf": 6}, {"buf": 12}])
    assert [numbering.age(name) for name in ("x", "buf3", "buf4_part", "buf6", "buf12")] == [0, 0, 1, 2, 3]
    matching = Matching(numbering, [], {}, 3)
    matching.match(
        (View("buf4", (2,), (1,)), "buf3", "shared"), (View("buf10", (2,), (1,)), "buf5", "shared")
    )
    first, second, late = matching.tables(2)
    assert (first["buf4"], second["buf4"], late["buf4"]) == ("buf6", "buf8", "buf8")
    assert (first["buf3"], late["buf5"], "shared" in late) == ("buf5", "buf9", False)
    for other in (View("buf11", (2,), (1,)), View("buf10", (3,), (1,))):
        with pytest.raises(NotRepeated):
            matching.match(View("buf4", (2,), (1,)), other)
    matching = Matching(numbering, [], {}, 3)
    matching.match("buf4", "buf11")
    with pytest.raises(NotRepeated):
        matching.tables(2)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_what_layers_share_is_shared_by_those_that_are_left_out(both: _Both, training: bool) -> None:
    both.run(_Masked(14), torch.randn(4, 8), training)
    assert len(both.left_out) >= 1 and any(both.loops)


@pytest.mark.slow
def test_gradients_of_layers_that_are_left_out(both: _Both) -> None:
    both.run(_chain(14), torch.randn(4, 8), training=True)
    assert both.left_out and any(both.loops)


@pytest.mark.slow
def test_what_layers_save_of_two_norms(both: _Both) -> None:
    class Behind(nn.Module):
        """A layer with its norms behind the sums."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.first, self.second = nn.Linear(8, 24), nn.LayerNorm(8), nn.LayerNorm(8)
            self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.inner(x).unsqueeze(0).unsqueeze(0).chunk(3, -1)
            x = self.first(x + nn.functional.scaled_dot_product_attention(q, k, v)[0, 0])
            return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))

    # with few rows gradients take more than what is saved, and other steps are reordered for the peak's sake
    both.run(_chain(12, lambda at: Behind()), torch.randn(64, 8), training=True)
    assert len(both.left_out) == 2 and any(both.loops)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"size_classes": False}, {}])
def test_sizes_that_vary(both: _Both, options: dict[str, Any]) -> None:
    network, x = _chain(14), torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    both.run(network, x, **options)
    assert bool(both.left_out) == bool(options)  # a program for a class of sizes is made of all layers


@pytest.mark.slow
@pytest.mark.parametrize("odd", [0, 1, 2, 5, 9, 11])
def test_a_layer_with_another_constant_is_compiled_as_it_is(both: _Both, odd: int) -> None:
    both.run(_chain(12, lambda at: _Layer(8, 0.5 if at == odd else 1e-5)), torch.randn(4, 8))


@pytest.mark.slow
def test_a_layer_of_another_type_is_compiled_as_it_is(both: _Both) -> None:
    class Rounded(_Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(torch.bfloat16).to(x.dtype))

    both.run(_chain(12, lambda at: Rounded(8) if at == 6 else _Layer(8)), torch.randn(4, 8))


@pytest.mark.slow
@pytest.mark.parametrize("tied", [(0, 11), (3, 7), (5, 6), (10, 11)])
def test_layers_with_the_same_parameters(both: _Both, tied: tuple[int, int]) -> None:
    network: Any = _chain(12)
    network[tied[0]].first.weight = network[tied[1]].first.weight
    both.run(network, torch.randn(4, 8))


@pytest.mark.slow
def test_all_layers_with_the_same_parameters(both: _Both) -> None:
    layer = _Layer(8)
    both.run(_chain(14, lambda at: layer), torch.randn(4, 8))
    assert both.left_out


@pytest.mark.slow
def test_results_of_each_layer(both: _Both) -> None:
    class LayerResults(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(_Layer(8) for _ in range(9))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = [x := layer(x) for layer in self.layers]
            return torch.stack([*found[:2], *found[-2:]]), *found  # type: ignore[return-value]

    both.run(LayerResults(), torch.randn(4, 8))


@pytest.mark.slow
def test_what_a_later_layer_reads_of_an_early_one(both: _Both) -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(_Layer(8) for _ in range(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results: list[torch.Tensor] = []
            for layer in self.layers:
                results.append(x)
                x = layer(x) + results[max(0, len(results) - 3)]
            return x

    both.run(Skips(), torch.randn(4, 8))


def test_records_are_copied_without_what_was_computed_of_them() -> None:
    graph = Graph("one", "inference", (), (), {}, ())
    assert graph.output_buffers() == () and "_outputs" in vars(graph)
    other = changed(graph, name="two")
    assert other == replace(graph, name="two") and "_outputs" not in vars(other)
    with pytest.raises(TypeError):
        changed(graph, absent=1)


def test_a_graph_that_does_not_repeat_itself_has_no_periods() -> None:
    assert not list(periods_of(_traced(9, float)))
    (found,) = periods_of(_traced(9))
    assert found.count >= 8 and found.skipped == found.count - 4


@pytest.mark.parametrize(
    "widths, length",
    [([3, 3, 3, 2, *[2] * 7], 8), ([3, 2] * 8 + [3], 16), ([4, 3, 2] * 8 + [4], 24), (list(range(2, 12)), 0)],
)
def test_layers_that_differ_in_their_sizes_alone_are_not_equal(widths: list[int], length: int) -> None:
    found = list(periods_of(_of_widths(widths)))
    assert [item.length for item in found[:1]] == [length] * bool(length)
    for item in found:
        rows = [[tuple(node.meta["val"].shape) for node in item.period(at)] for at in range(item.count)]
        assert all(row == rows[0] for row in rows) and item.count >= 6
