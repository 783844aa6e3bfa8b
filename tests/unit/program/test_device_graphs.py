"""Which programs can be recorded, why others cannot, and what a recording is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fake_graphs import FakeDevice, fake_graph_device
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Collective, ExternCall, Opaque, Wait
from polyfuse.ir.text.parse import parse_graph
from polyfuse.ir.text.print import text
from polyfuse.lowering.calls.fallback import Rebuilt
from polyfuse.program.device_graphs import UNSAFE, UNSAFE_IF_DETERMINISTIC, _fault
from polyfuse.runtime.graphs.replay import GraphFacts, recorded_program
from polyfuse.runtime.graphs.status import GraphStatus
from polyfuse.runtime.module import CompiledModule


@pytest.fixture(autouse=True)
def device() -> Iterator[FakeDevice]:
    torch._dynamo.reset()
    with fake_graph_device() as made:
        yield made


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> GraphReport:
    """What is reported of the last graph of `fn`, run twice on `args`."""
    reset_reports()
    choice = {"device_graphs": True, "backends": ["interpreter"], **options}
    run = torch.compile(fn, backend="polyfuse", options=choice)
    for _ in range(2):
        run(*args)
    return last_reports()[-1]


def refusal(fn: Callable[..., Any], *args: Any, **options: Any) -> str:
    found = compiled(fn, *args, **options)
    assert found.recording is not None
    assert found.recording.recordings == 0
    assert f"not recorded: {found.recording.refused}" in explain_graph(found)
    return found.recording.refused


def test_what_can_be_recorded_is() -> None:
    found = compiled(lambda x: torch.mm(x, x).sum(), torch.randn(3, 3))
    assert found.recording is not None and found.recording.recordings == 1
    assert "device graph: recorded 1 times" in explain_graph(found)


@pytest.mark.quick(1)
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: torch.zeros(x.int().sum().item()), "aten._local_scalar_dense.default cannot be recorded"),
        (lambda x: x.nonzero() + 1, "aten.nonzero.default makes a size depend on data"),
        (lambda x: torch.multinomial(x.abs(), 2), "aten.multinomial.default cannot be recorded"),
    ],
)
def test_operators_that_wait_for_the_device(fn: Callable[..., Any], words: str) -> None:
    assert words in refusal(fn, torch.rand(5) + 1)


@pytest.mark.slow
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_backward_whose_sizes_depend_on_data() -> None:
    reset_reports()
    run = torch.compile(
        lambda x, w: (x[x > 0].sin() * w).sum(),
        backend="polyfuse",
        options={"device_graphs": True, "backends": ["interpreter"]},
    )
    for _ in range(2):
        w = torch.randn((), requires_grad=True)
        x = torch.randn(10)
        run(x, w).backward()
        torch.testing.assert_close(w.grad, x[x > 0].sin().sum())
    reasons = [r.recording.refused for r in last_reports() if r.recording is not None]
    assert len(reasons) == 2 and all("depend" in reason for reason in reasons)


@pytest.mark.parametrize(
    "call",
    (
        Collective("c", "_c10d_functional.all_reduce_.default", (), (), (), "none", group="0"),
        Wait("w", "_c10d_functional.wait_tensor.default", (), (), (), "none"),
    ),
)
def test_communication_is_not_recorded(call: ExternCall) -> None:
    graph = Graph("graph", "inference", (), (), {}, ())
    assert _fault(call, graph) == (call.op, "communicates with other processes")


def test_the_reason_says_where() -> None:
    found = refusal(lambda x: torch.multinomial(x.abs(), 2), torch.rand(5))
    assert "test_device_graphs.py" in found


def test_the_first_fault_in_order_is_named() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = refusal(lambda x: (x.nonzero(), torch.multinomial(x, 2)), torch.rand(5))
    assert "nonzero" in found


@pytest.mark.parametrize("name", sorted(n for n in UNSAFE | UNSAFE_IF_DETERMINISTIC if n.startswith("aten.")))
def test_listed_operators_exist_and_are_meant_with_every_overload(name: str) -> None:
    packet = getattr(torch.ops.aten, name.removeprefix("aten."))
    graph = Graph("graph", "inference", (), (), {}, ())
    for overload in packet.overloads():
        call = ExternCall("call", op=str(getattr(packet, overload)), args=(), kwargs=(), outputs=())
        torch.use_deterministic_algorithms(name in UNSAFE_IF_DETERMINISTIC)
        try:
            assert "cannot be recorded" in _fault(call, graph)[1]
        finally:
            torch.use_deterministic_algorithms(False)
        if name in UNSAFE_IF_DETERMINISTIC:
            assert not _fault(call, graph)[1]


@pytest.mark.slow
def test_deterministic_algorithms() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x).index_put((i,), x[i], accumulate=True)

    args = torch.randn(4, 4), torch.tensor([0, 2])
    # the host looks at the status of index checks, which ends a recording on this device
    forced = {"force_fallback": ["aten.index_put"], "index_asserts": False}
    assert compiled(fn, *args, **forced).recording.recordings == 1  # type: ignore[union-attr]
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic" in refusal(fn, *args, **forced)
        torch._dynamo.reset()
        assert compiled(lambda x: torch.mm(x, x), args[0]).recording.recordings == 1  # type: ignore[union-attr]
    finally:
        torch.use_deterministic_algorithms(False)


def test_operators_whose_author_says_so() -> None:
    @torch.library.custom_op("polyfuse_tests::unsafe", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
    def unsafe(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @unsafe.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("polyfuse_tests::safe", mutates_args=())
    def safe(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @safe.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    assert "polyfuse_tests.unsafe.default cannot be recorded" in refusal(unsafe, torch.randn(3))
    assert compiled(safe, torch.randn(3)).recording.recordings == 1  # type: ignore[union-attr]


def test_operators_with_other_effects() -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    @torch.library.custom_op("polyfuse_tests::telling", mutates_args=())
    def telling(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @telling.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    _register_effectful_op(telling._opoverload, _EffectType.ORDERED)
    assert "polyfuse_tests.telling.default does more than compute" in refusal(telling, torch.randn(3))


def test_branches_on_data() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    assert "higher_order.cond" in refusal(fn, torch.randn(3))


def test_states_of_random_numbers_that_are_saved_and_put_back() -> None:
    """As in a checkpointed region on the CPU."""

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.tanh(x), 0.5)

    reset_reports()
    run = torch.compile(
        lambda x: checkpoint(block, x, use_reentrant=False).sum(),
        backend="polyfuse",
        options={"device_graphs": True, "backends": ["interpreter"], "strict": True},
    )
    for _ in range(3):
        x = torch.full((64,), 0.5, requires_grad=True)
        result = run(x)
        result.backward()
        # what was dropped has no gradient: the same numbers were drawn again
        assert x.grad is not None
        torch.testing.assert_close(result, (x.grad != 0).sum() * 2 * torch.tanh(torch.tensor(0.5)))
    for kind, name in (("forward", "run_and_save_rng_state"), ("backward", "run_with_rng_state")):
        (refused,) = [r.recording.refused for r in last_reports() if r.kind == kind and r.recording]
        assert f"{name} does more than compute" in refused


@pytest.mark.quick(1)
@pytest.mark.parametrize("option", ["nan_asserts", "debug_sync", "profile"])
def test_options_that_wait_for_the_device(option: str) -> None:
    assert f"the option {option}" in refusal(lambda x: x + 1, torch.randn(3), **{option: True})


def test_generators_are_passed_to_the_device(device: FakeDevice) -> None:
    generator = torch.Generator()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=generator)

    facts = GraphFacts("cpu", varying=(0,))
    status = GraphStatus()
    run = recorded_program(lambda args: (fn(*args),), facts, (), (generator,), "graph", status)
    for _ in range(3):
        run([torch.zeros(3)])
    assert device.generators == [generator]


def with_generator() -> tuple[GraphStatus, Callable[..., list[float]]]:
    """A recorded program that draws from a generator among its inputs."""
    facts = GraphFacts("cpu", varying=(0,), objects=(1,), names=("x", "state"))
    status = GraphStatus()

    def program(args: list[Any]) -> tuple[torch.Tensor]:
        generator = args[1] if isinstance(args[1], torch.Generator) else None
        return (args[0] + torch.rand(3, generator=generator),)

    made = recorded_program(program, facts, (), (), "graph", status)
    return status, lambda *args: made(list(args))[0].tolist()


def test_a_generator_among_the_inputs_is_passed_to_the_device(device: FakeDevice) -> None:
    status, run = with_generator()
    x, first, second = torch.zeros(3), torch.Generator(), torch.Generator()
    for number, generator in enumerate((first, first, first, second, second, first)):
        generator.manual_seed(5)
        found = run(x, generator)
        generator.manual_seed(5)
        if number not in (1, 3):  # to be recorded here, a program is run
            assert found == torch.rand(3, generator=generator).tolist()
    assert device.generators == [first, second]
    assert status.recordings == 2 and "input 1 (state) is another generator" in status.again


def test_another_object_among_the_inputs_cannot_be_recorded(device: FakeDevice) -> None:
    status, run = with_generator()
    for _ in range(3):
        run(torch.zeros(3), "what is this")
    assert status.refused == "input 1 (state) is not a plain tensor"
    assert device.recorded == 0


def test_operators_with_a_state_of_their_own_are_like_the_operators() -> None:
    from torch._prims.rng_prims import graphsafe_run_with_rng_state

    def fault(op: Any) -> str:
        objects = {"object": Rebuilt(graphsafe_run_with_rng_state, (), {}), "inner": op}
        graph = Graph("graph", "forward", (), (), {}, (), objects)
        args = (Opaque(key="inner"), Opaque(key="fwd_rng_state_0"))
        return _fault(ExternCall("call", "object.object", args, (), ()), graph)[1]

    assert not fault(torch.ops.aten.rand.default)
    assert not fault(torch.ops.aten.native_dropout.default)
    assert "cannot be recorded" in fault(torch.ops.aten.multinomial.default)


def programs(fn: Callable[..., Any], *args: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The facts in the programs that are loaded for `fn`, run forward and backward."""
    loaded: list[dict[str, Any]] = []
    original = CompiledModule.__init__

    def spy(self: CompiledModule, name: str, text: str, filename: str, namespace: Any, *rest: Any) -> None:
        loaded.append(namespace.get("GRAPH"))
        original(self, name, text, filename, namespace, *rest)

    monkeypatch.setattr(CompiledModule, "__init__", spy)
    run = torch.compile(fn, backend="polyfuse", options={"device_graphs": True, "backends": ["interpreter"]})
    result = run(*args)
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    return loaded


def test_what_a_recording_is_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor, state: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            state.add_(1)
            return (x @ self.weight).tanh() * state

    args = torch.randn(2, 4), torch.zeros(4), torch.randn(3)
    forward, backward = programs(Model(), *args, monkeypatch=monkeypatch)
    assert forward["device"] == "cpu"
    assert len(forward["fixed"]) == 1
    assert len(forward["varying"]) == 2
    assert len(forward["mutated"]) == 1
    assert forward["mutated"][0] in forward["varying"]
    assert forward["saved"] and not forward["carried"]
    assert not forward["refused"]
    assert backward["carried"] and not backward["saved"]
    assert len(backward["varying"]) == len(backward["carried"]) + 1  # the gradient that comes in


def test_a_graph_with_saved_results_reads_back() -> None:
    from polyfuse.ir.graph import Graph, GraphInput, GraphOutput
    from polyfuse.ir.nodes import Buffer, View
    from polyfuse.ir.types import DType

    graph = Graph(
        "g",
        "forward",
        (GraphInput("x", "tensor"),),
        (GraphOutput(View("x", (3,), (1,))), GraphOutput(View("x", (3,), (1,)), saved=True)),
        {"x": Buffer("x", DType.f32, "cpu", (3,), (1,), "float32", "input")},
        (),
    )
    assert "saved" in text(graph)
    assert parse_graph(text(graph)) == graph
