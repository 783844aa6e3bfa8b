"""Graphs with more than plain operators: checkpoints, branches, custom operators, chosen strides, compiled
autograd.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from polyfuse.base.settings import Settings
from polyfuse.frontend.capture import compile_graph
from polyfuse.frontend.describe import alias_root
from requirements import torch_version


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def gradients(function: Any, *inputs: torch.Tensor) -> list[Any]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    torch.manual_seed(0)
    out = function(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


def test_checkpointed_region_is_recomputed(inner: Any) -> None:
    weight = torch.randn(8, 8)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout((x @ weight).sin().exp(), 0.3, True)

    def model(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False).cos()

    x = torch.randn(4, 8)
    close(gradients(inner.compile(model), x)[1:], gradients(torch.compile(model, backend="aot_eager"), x)[1:])
    backward = inner.ops(1)
    assert "aten.sin" in backward and "aten.mm" in backward


def test_branches(inner: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 1, lambda x: x.cos() + 0, (x,)) * 2

    compiled = inner.compile(model, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        close(compiled(x), model(x))


def test_a_loop_whose_state_is_also_its_result_is_differentiated(inner: Any) -> None:
    from torch._higher_order_ops.scan import scan

    def model(x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(state @ weight + x)
            return state, state.clone()

        last, states = scan(step, state, x)
        return states.cumsum(0) + last

    inputs = torch.randn(4, 2, 3), torch.randn(2, 3), torch.randn(3, 3)
    close(gradients(inner.compile(model, fullgraph=True), *inputs), gradients(model, *inputs))


def test_custom_operator_that_writes(inner: Any) -> None:
    @torch.library.custom_op("polyfuse_tests::accumulate", mutates_args=["total"])
    def accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return x * 2

    @accumulate.register_fake
    def _(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def model(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        inside = x.clone()
        return accumulate(total, x) + accumulate(inside, x) + inside

    ours, theirs = torch.zeros(3), torch.zeros(3)
    close(inner.compile(model)(ours, torch.ones(3)), model(theirs, torch.ones(3)))
    close(ours, theirs)


def test_checks_of_data_survive(inner: Any) -> None:
    def model(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = n.item()
        torch._check(count > 2)
        return x * count

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = inner.compile(model, fullgraph=True)
        close(compiled(torch.ones(2), torch.tensor(3)), torch.full((2,), 3.0))
        with pytest.raises(RuntimeError):
            compiled(torch.ones(2), torch.tensor(1))
    if torch_version() >= (2, 13):
        # Earlier releases check while Dynamo traces alone.
        assert any("_assert_scalar" in op for op in inner.ops())


@pytest.mark.skipif(
    torch_version() < (2, 13), reason="torch has losses over chunks of a vocabulary since 2.13"
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_logits_are_made_in_chunks_where_a_loss_says_so(inner: Any) -> None:
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=4, chunking_method=None)

    def loss(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = x.tanh()
        return nn.functional.linear_cross_entropy(hidden, weight, labels, options=options)

    def whole(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x.tanh() @ weight.T, labels)

    torch.manual_seed(0)
    inputs = torch.randn(16, 6), torch.randn(31, 6), torch.randint(31, (16,))
    for found, expected in zip(
        gradients(inner.compile(loss), *inputs), gradients(whole, *inputs), strict=True
    ):
        close(found, expected)
    sizes = {tuple(node.meta["val"].shape) for graph in inner.graphs for node in tensors_of(graph)}
    assert (16, 31) not in sizes


def tensors_of(graph: Any) -> list[torch.fx.Node]:
    return [n for n in graph.module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]


class ChoosesStrides:
    """Saves what is saved for the backward transposed, and says so."""

    def __init__(self) -> None:
        self.backward_strides: list[tuple[int, ...]] = []

    def __call__(self, graph: Any) -> Any:
        saved = [o.saved and o.kind == "tensor" and o.value.dim() == 2 for o in graph.outputs]
        given = {n.name for n in graph.module.graph.nodes if alias_root(n).op == "placeholder"}
        own = [s and o.node not in given for s, o in zip(saved, graph.outputs, strict=True)]
        interpreter = torch.fx.Interpreter(graph.module)

        def run(args: list[Any]) -> Any:
            outs = interpreter.boxed_run(args)
            return [t.t().contiguous().t() if s else t for s, t in zip(own, outs, strict=True)]

        if graph.kind == "backward":
            self.backward_strides = [tuple(i.value.stride()) for i in graph.inputs if i.kind == "tensor"]
            return interpreter.boxed_run
        run.output_strides = [  # type: ignore[attr-defined]
            (1, o.value.shape[0]) if s else None for s, o in zip(own, graph.outputs, strict=True)
        ]
        return run


def test_backward_is_compiled_for_the_strides_the_forward_chose() -> None:
    inner = ChoosesStrides()

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_graph(gm, inputs, inner=inner, settings=Settings())

    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    twin = copy.deepcopy(model)
    x = torch.randn(5, 4)
    torch.compile(twin, backend=backend)(x).sum().backward()
    model(x).sum().backward()
    close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])
    assert any(s == (1, 5) for s in inner.backward_strides)


def test_compiled_autograd(inner: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    twin = copy.deepcopy(model)
    x = torch.randn(5, 4)
    with torch._dynamo.config.patch(compiled_autograd=True):
        step = inner.compile(lambda: twin(x).sum().backward())
        step()
    model(x).sum().backward()
    close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])


def test_output_written_to_before_the_backward(inner: Any) -> None:
    def model(x: torch.Tensor) -> Any:
        y = x.sin()
        return y.clone(), y.exp().sum()

    def run(function: Any) -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        copy_of_y, total = function(x)
        with torch.no_grad():
            copy_of_y.add_(5)
        total.backward()
        assert x.grad is not None
        return x.grad

    close(run(inner.compile(model)), run(model))


def test_rewrites_can_be_turned_off(inner: Any) -> None:
    inner.settings = Settings(graph_rewrites=False)
    x = torch.randn(3)
    close(
        gradients(inner.compile(lambda x: (x * 1).sin() * (x * 1).sin()), x),
        gradients(lambda x: x.sin() ** 2, x),
    )
    assert inner.ops().count("aten.sin") >= 1 and inner.graphs[0].rewrites == ()


def test_inference_mode_and_autocast(inner: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    x = torch.randn(2, 8)
    compiled = inner.compile(model)
    with torch.inference_mode():
        close(compiled(x), model(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)


def test_numbers_under_vectorised_maps(inner: Any) -> None:
    """There `t * 2` becomes a cast of a plain number."""
    x = torch.randn(3, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.vmap(lambda t: t * 2 + 1))(x)

    close(inner.compile(function)(x), function(x))


def test_double_use_of_one_input(inner: Any) -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    inner.compile(lambda a, b: (a * b).sum())(x, x).backward()
    (y * y).sum().backward()
    close(x.grad, y.grad)


def test_complex_numbers_and_sparse_results_pass(inner: Any) -> None:
    x = torch.randn(4, dtype=torch.complex64)
    close(inner.compile(lambda x: x.conj().t().clone() * 1 + x.real)(x), x.conj() + x.real)


def _read_before(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    result = state.exp() * x
    with torch.no_grad():
        state.mul_(2)
    return result


def _read_through_a_view(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    result = state[1:].exp() * x[:-1]
    with torch.no_grad():
        state.lerp_(x.detach(), 0.1)
    return result


def _overwritten_in_part(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    result = state.clamp(0, 1) * x
    state[0] = 5.0
    return result


def _read_after(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        state.lerp_(x.detach(), 0.1)
    return (state * 3).tanh() * x


@pytest.mark.quick(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("model", [_read_before, _read_through_a_view, _overwritten_in_part, _read_after])
def test_gradients_by_what_the_forward_overwrites(model: Any, dynamic: bool, inner: Any) -> None:
    """The backward computes again from an input's content what the forward computed from it."""
    compiled = inner.compile(model, dynamic=dynamic)
    ours, theirs = (torch.linspace(-1, 1, 20).view(4, 5).clone() for _ in range(2))
    for _ in range(2):
        x = torch.randn(4, 5)
        close(gradients(lambda x: compiled(x, ours), x), gradients(lambda x: model(x, theirs), x))
        close(ours, theirs)


def test_what_is_overwritten_and_not_saved_is_not_copied(inner: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    inner.compile(model)(torch.randn(2, 3, 6, 6)).sum().backward()
    assert "aten.copy_" in inner.ops(0) and "aten.clone" not in inner.ops(0)
