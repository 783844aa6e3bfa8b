"""Capture through AOTAutograd, against eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import preforked
from polyfuse.frontend.graph import graph_text
from polyfuse.torch_compat.tracing import dynamo, shapes


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def check_training(inner: Any, model: nn.Module, *inputs: torch.Tensor, **options: Any) -> None:
    """Compare outputs, gradients and buffers after two steps."""
    twin = copy.deepcopy(model)
    compiled = inner.compile(twin, **options)
    for _ in range(2):
        ours_in = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        theirs_in = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        ours, theirs = compiled(*ours_in), model(*theirs_in)
        close(ours, theirs)
        ours.square().sum().backward()
        theirs.square().sum().backward()
        close([x.grad for x in ours_in], [x.grad for x in theirs_in])
    close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])
    close(list(twin.buffers()), list(model.buffers()))


def test_mlp_trains(inner: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    check_training(inner, model, torch.randn(5, 6))
    assert inner.kinds() == ["forward", "backward"]


def test_batch_norm_updates_its_statistics(inner: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    check_training(inner, model, torch.randn(2, 3, 8, 8))
    forward = inner.graphs[0]
    mutated = [i for i in forward.inputs if i.mutated]
    assert len(mutated) == 3
    assert all(i.static for i in mutated)


def test_saved_outputs_are_distinguished_from_the_users(inner: Any) -> None:
    check_training(inner, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
    forward, backward = inner.graphs
    assert [o.saved for o in forward.outputs].count(False) == 1
    assert not forward.outputs[0].saved and forward.outputs[1].saved
    assert any(i.donated for i in backward.inputs)


def test_inference_keeps_the_mutation_in_the_graph(inner: Any) -> None:
    def step(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.mul_(2)
        state[1:].add_(x)
        return state.sum() + x

    ours, theirs = torch.arange(4.0), torch.arange(4.0)
    compiled = inner.compile(step)
    with torch.no_grad():
        close(compiled(torch.ones(3), ours), step(torch.ones(3), theirs))
    close(ours, theirs)
    assert inner.ops().count("aten.copy_") == 1
    assert any(i.mutated for i in inner.graphs[0].inputs)


def test_swapped_buffers_keep_their_copy(inner: Any) -> None:
    def swap(a: torch.Tensor, b: torch.Tensor) -> None:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    a, b = torch.zeros(3), torch.ones(3)
    inner.compile(swap)(a, b)
    close(a, torch.ones(3))
    close(b, torch.zeros(3))


def test_dropout_draws_the_same_numbers(inner: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    x = torch.randn(4, 8)
    reference = torch.compile(model, backend="aot_eager")
    torch.manual_seed(7)
    expected = reference(x)
    torch._dynamo.reset()
    compiled = inner.compile(model)
    torch.manual_seed(7)
    actual = compiled(x)
    close(actual, expected)
    mask = actual == 0
    actual.sum().backward()
    assert mask.any() and not mask.all()


def test_two_random_calls_stay_two(inner: Any) -> None:
    compiled = inner.compile(lambda x: (torch.rand_like(x), torch.rand_like(x)))
    a, b = compiled(torch.zeros(4))
    assert not torch.equal(a, b)


def test_outputs_of_every_kind(inner: Any) -> None:
    constant = torch.tensor([1.0, 2.0])

    def mixed(x: torch.Tensor) -> Any:
        y = x.relu()
        return x, y, y, y.t(), None, 3, "text", x.size(0), {"nested": (x.view(-1), y + constant)}, x.t()

    x = torch.randn(3, 2)
    ours = inner.compile(mixed)(x)
    close(ours[8]["nested"][0], x.view(-1))
    assert ours[0] is x and ours[1].data_ptr() == ours[3].data_ptr()
    assert ours[4:8] == (None, 3, "text", 3)
    assert ours[9]._base is x or ours[9].data_ptr() == x.data_ptr()


def test_two_copies_returned_stay_two(inner: Any) -> None:
    x = torch.ones(3)
    with torch.no_grad():
        a, b, c = inner.compile(lambda x: (x.clone(), x.clone(), x + 0))(x)
    a.add_(1)
    assert len({t.data_ptr() for t in (x, a, b, c)}) == 4
    close(b, x)


def test_graph_without_operators(inner: Any) -> None:
    x = torch.ones(2)
    out = inner.compile(lambda x: (x, x.view(1, 2)))(x)
    assert out[0] is x
    close(out[1], x.view(1, 2))


def test_view_of_an_input_written_to_while_training(inner: Any) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x[0].mul_(3)
        return (x * w).sum()

    w1, w2 = (torch.full((2, 2), 2.0, requires_grad=True) for _ in range(2))
    x1, x2 = torch.ones(2, 2), torch.ones(2, 2)
    inner.compile(step)(x1, w1).backward()
    step(x2, w2).backward()
    close(x1, x2)
    close(w1.grad, w2.grad)


def _symbols(graph: Any) -> set[Any]:
    """Every symbol in the values of a graph's nodes."""
    values = [n.meta.get("val") for n in graph.module.graph.nodes]
    return {s for v in values if v is not None for s in shapes.free_symbols(v)}


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["flag", "mark", "automatic"])
def test_dynamic_shapes(inner: Any, how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))
    compiled = inner.compile(model, dynamic=True if how == "flag" else None)
    for n in (5, 7, 9):
        x = torch.randn(n, 4, requires_grad=True)
        if how == "mark":
            torch._dynamo.mark_dynamic(x, 0)
        y = compiled(x)
        close(y, model(x))
        y.sum().backward()
    dynamic = [g for g in inner.graphs if _symbols(g)]
    assert dynamic and len(inner.graphs) <= 4
    graph = next(g for g in dynamic if g.kind == "forward")
    (symbol,) = _symbols(graph)
    assert symbol in [shapes.expr_of(i.value) for i in graph.inputs if i.kind == "symbol"]
    assert shapes.hint(graph.shape_env, symbol) in (5, 7)
    low, high = shapes.value_range(graph.shape_env, symbol)
    assert low == 2 and high is None
    assert not shapes.statically_known(graph.shape_env, shapes.simplify(graph.shape_env, symbol) > 3)


def test_sizes_from_data(inner: Any) -> None:
    def pick(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    compiled = inner.compile(pick, fullgraph=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for n in (4, 6):
            x = torch.randn(n)
            close(compiled(x), pick(x))
    (graph, *_) = inner.graphs
    assert any(shapes.is_unbacked(n.meta.get("val")) for n in graph.module.graph.nodes if "val" in n.meta)
    unbacked = [s for s in _symbols(graph) if shapes.is_unbacked(s)]
    assert shapes.hint(graph.shape_env, unbacked[0]) > 0


def test_scalars_from_data(inner: Any) -> None:
    def scale(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 0)
        return x * k + torch.arange(k + 1).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = inner.compile(scale, fullgraph=True)
        close(compiled(torch.ones(3), torch.tensor(4)), scale(torch.ones(3), torch.tensor(4)))
        close(compiled(torch.ones(3), torch.tensor(7)), scale(torch.ones(3), torch.tensor(7)))


def test_counters_tell_ddp_that_aot_ran(inner: Any) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    inner.compile(lambda x: x + 1)(torch.ones(2))
    assert counters["aot_autograd"]["total"] == 1
    assert counters["aot_autograd"]["ok"] == 1


def test_an_error_of_the_inner_compiler_reaches_the_user() -> None:
    from polyfuse.base.settings import Settings
    from polyfuse.frontend.capture import compile_graph

    def refuse(graph: Any) -> Any:
        raise ValueError("no")

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_graph(gm, inputs, inner=refuse, settings=Settings())

    with pytest.raises(Exception, match="no"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


def test_compiled_optimizer_step(inner: Any) -> None:
    def train(compiled: bool, fused: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=not fused, fused=fused)
        step = inner.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()]

    close(train(True, False), train(False, False))
    assert not any("_foreach" in op for i in range(len(inner.graphs)) for op in inner.ops(i))
    close(train(True, True), train(False, True))


def test_nothing_of_inductors_core_is_loaded() -> None:
    script = """
import sys, torch
from polyfuse.base.settings import Settings
from polyfuse.frontend.capture import compile_graph
def inner(graph):
    return torch.fx.Interpreter(graph.module).boxed_run
def backend(gm, inputs):
    return compile_graph(gm, inputs, inner=inner, settings=Settings())
m = torch.nn.Linear(3, 3)
torch.compile(m, backend=backend)(torch.ones(2, 3)).sum().backward()
names = "ir graph lowering scheduler compile_fx select_algorithm codegen.cpp codegen.triton".split()
loaded = [n for n in names if "torch._inductor." + n in sys.modules]
passes = [n for n in sys.modules if n.startswith("torch._inductor.fx_passes.")]
# Tracing itself imports this one.
loaded += [n for n in passes if not n.endswith("dedupe_symint_uses")]
assert not loaded, loaded
"""
    done = preforked.run(script)
    assert done.returncode == 0, done.stderr[-2000:]


def test_nested_inputs_are_flattened(inner: Any) -> None:
    class Nested(torch.nn.Module):
        def forward(self, pair: list[torch.Tensor], z: torch.Tensor) -> Any:
            return (pair[0] + pair[1] * z,)

    gm = torch.fx.symbolic_trace(Nested(), concrete_args=None)
    compiled = inner.backend(gm, [[torch.ones(2), torch.ones(2)], torch.ones(2)])
    (out,) = compiled([torch.ones(2), torch.full((2,), 2.0)], torch.full((2,), 3.0))
    close(out, torch.full((2,), 7.0))


def test_results_keep_their_structure(inner: Any) -> None:
    class Pairs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, given: dict[str, Any]) -> Any:
            first, second = given["both"]
            return {"sum": first + second, "rest": (first * self.weight, [second, 3])}

    module, given = Pairs(), {"both": [torch.ones(2), torch.full((2,), 2.0)]}
    for gm in (torch.fx.symbolic_trace(module), torch.export.export(module, (given,)).module()):
        out = inner.backend(gm, [given])(given)
        assert set(out) == {"sum", "rest"} and out["rest"][1][1] == 3
        close([out["sum"], out["rest"][0], out["rest"][1][0]], [torch.full((2,), v) for v in (3.0, 1.0, 2.0)])
        out["rest"][0].sum().backward()
    close(module.weight.grad, torch.full((2,), 2.0))
    single = inner.backend(make_fx(torch.sin)(torch.ones(2)), [torch.ones(2)])
    close(single(torch.ones(2)), torch.ones(2).sin())


def test_names_carry_the_compile_id(inner: Any) -> None:
    inner.compile(lambda x: x + 1)(torch.ones(2))
    assert inner.graphs[0].name == "inference_0_0"
    assert dynamo.compile_id() == ""


def test_text_is_readable(inner: Any) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    inner.compile(doubled)(torch.ones(2))
    text = graph_text(inner.graphs[0])
    assert "input %arg0_1: f32[2] strides (1) cpu" in text
    assert "aten.mul.Tensor(%arg0_1, 2)" in text and "return x * 2 + 1" in text


def test_the_compiler_of_a_backward_is_not_traced() -> None:
    """It is called where Dynamo is live, which warns of what it meets there, once in a process."""
    script = """
import warnings, torch
x = torch.randn(8, requires_grad=True)
run = torch.compile(lambda x: torch.autograd.grad((x * x).sum(), x)[0] * 2, backend="polyfuse")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.testing.assert_close(run(x), 4 * x.detach())
assert not said, [str(one.message) for one in said]
"""
    done = preforked.run(script)
    assert done.returncode == 0, done.stderr[-2000:]
