"""What follows from parameters alone is computed once, and again when they change; results stay the same."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.frontend import traced
from polyfuse.frontend.freezing.freeze import freeze
from polyfuse.runtime.frozen import FrozenOperand, FrozenProgram, FrozenStep, FrozenValues, PackedInputs

OPTIONS = {"freezing": True, "strict": True, "graph_cache": False, "backends": ["interpreter"]}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    reset_reports()
    yield


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[FrozenValues | None]:
    """What was taken out of each graph."""
    found: list[FrozenValues | None] = []

    def spy(*args: Any) -> FrozenValues | None:
        found.append(freeze(*args))
        return found[-1]

    monkeypatch.setattr(traced, "freeze", spy)
    return found


def compiled(module: Callable[..., Any], **more: object) -> Any:
    return torch.compile(module, backend="polyfuse", options={**OPTIONS, **more})


def names(report: Any) -> list[str]:
    return [name for name, _ in report.rewrites]


class Scaled(nn.Module):
    """Reads a weight through arithmetic, a view of it, and hands out a value that depends on nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        return x @ (self.weight.sigmoid() * 2).t() + self.weight[0, 0], self.weight.exp()


@torch.no_grad()
def test_computed_once_and_again_after_a_change(frozen):
    module, x = Scaled(), torch.randn(3, 5)
    run = compiled(module)
    torch.testing.assert_close(run(x), module(x))
    (found,) = frozen
    assert found is not None and len(found.layouts) == 1 and found.layouts[0][0] == (6, 5)
    calls: list[int] = []
    compute = found.compute
    object.__setattr__(found, "compute", lambda *given: calls.append(1) or compute(*given))
    for _ in range(3):
        torch.testing.assert_close(run(x), module(x))
    assert calls == []
    module.weight.mul_(3)
    torch.testing.assert_close(run(x), module(x))
    torch.testing.assert_close(run(x), module(x))
    assert calls == [1]
    module.weight.data = torch.randn(6, 5)  # another address
    torch.testing.assert_close(run(x), module(x))
    assert calls == [1, 1]


@torch.no_grad()
def test_the_caller_may_write_to_what_it_gets(frozen):
    module, x = Scaled(), torch.randn(3, 5)
    run = compiled(module)
    _, first = run(x)
    first.zero_()
    torch.testing.assert_close(run(x), module(x))


def test_not_where_gradients_are_wanted_nor_unless_asked_for(frozen):
    module, x = Scaled(), torch.randn(3, 5)
    compiled(module)(x)[0].sum().backward()
    assert module.weight.grad is not None and frozen == []
    with torch.no_grad():
        compiled(module, freezing=False)(x)
    assert frozen == []


@torch.no_grad()
def test_buffers_that_the_graph_writes_to_stay_inputs(frozen):
    class Counting(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * (self.count * 2) + self.weight.exp().sum()

    module, other, x = Counting(), Counting(), torch.randn(3, 5)
    other.load_state_dict(module.state_dict())
    run = compiled(module)
    for _ in range(3):
        torch.testing.assert_close(run(x), other(x))
    assert frozen[0] is not None and len(frozen[0].sources) == 1


@torch.no_grad()
def test_random_numbers_are_drawn_at_each_call(frozen):
    class Noisy(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(self.weight).sum() + self.weight.exp().sum()

    run, x = compiled(Noisy()), torch.randn(3, 5)
    assert not torch.equal(run(x), run(x))


@torch.no_grad()
def test_what_grows_too_large_is_not_stored(frozen, monkeypatch):
    monkeypatch.setattr("polyfuse.frontend.freezing.freeze._BYTES", 1024)

    class Table(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (self.weight.exp()[:, :, None, None] * torch.ones(50, 50)).sum((0, 2, 3))

    module, x = Table(), torch.randn(3, 5)
    torch.testing.assert_close(compiled(module)(x), module(x))
    assert frozen[0] is not None and [size for size, _ in frozen[0].layouts] == [(6, 5)]


@pytest.mark.slow
@torch.no_grad()
def test_layers_that_share_a_program_keep_their_own(frozen):
    layers, x = [Scaled() for _ in range(3)], torch.randn(3, 5)

    @compiled
    def run(layer: nn.Module, x: torch.Tensor) -> Any:
        return layer(x)

    for _ in range(2):
        for layer in layers:
            torch.testing.assert_close(run(layer, x), layer(x))


@pytest.mark.slow
def test_under_inference_mode(frozen):
    module, x = Scaled(), torch.randn(3, 5)
    run = compiled(module)
    with torch.inference_mode():
        torch.testing.assert_close(run(x), module(x))
    with torch.no_grad():
        module.weight.add_(1)
    with torch.inference_mode():
        torch.testing.assert_close(run(x), module(x))


@torch.no_grad()
def test_sizes_may_vary(frozen):
    module = Scaled()
    run = torch.compile(module, backend="polyfuse", options=OPTIONS, dynamic=True)
    for rows in (3, 1, 8):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(run(x), module(x))


def normalised(dtype: torch.dtype, groups: int = 1, bias: bool = False) -> nn.Module:
    module = nn.Sequential(
        nn.Conv2d(4, 6 * groups, 3, groups=groups, bias=bias), nn.BatchNorm2d(6 * groups), nn.ReLU()
    )
    norm: Any = module[1]
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
        norm.bias.normal_()
    return module.eval().to(dtype)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("groups", "bias"), [(1, False), (1, True), (2, True)])
@torch.no_grad()
def test_batch_normalisation_goes_into_the_weights(frozen, dtype, groups, bias):
    module = normalised(dtype, groups, bias)
    x = torch.randn(2, 4, 7, 5, dtype=dtype)
    run = compiled(module)
    limits = {"rtol": 4e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(run(x), module(x), **limits)
    assert frozen[0] is not None and frozen[0].folded >= 4 and len(frozen[0].layouts) == 2
    (report,) = last_reports()
    assert "freezing" in names(report)
    norm: Any = module[1]
    norm.running_mean.add_(1)
    norm.weight.mul_(0.5)
    torch.testing.assert_close(run(x), module(x), **limits)


@torch.no_grad()
def test_convolutions_whose_result_is_read_twice_keep_their_weights(frozen):
    module = normalised(torch.float32)

    def both(x: torch.Tensor) -> Any:
        y = module[0](x)
        return y, module[1](y)

    x = torch.randn(2, 4, 7, 5)
    torch.testing.assert_close(compiled(both)(x), both(x))
    assert frozen[0] is None or frozen[0].folded == 0


@torch.no_grad()
def test_numbers_as_in_eager_mode_are_not_put_together(frozen):
    module, x = normalised(torch.float32), torch.randn(2, 4, 7, 5)
    torch.testing.assert_close(compiled(module, numerics="eager")(x), module(x))
    assert frozen[0] is not None and frozen[0].folded == 0


@pytest.mark.slow
@torch.no_grad()
def test_what_differs_within_a_channel_stays(frozen):
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3, bias=False)
            self.where = nn.Parameter(torch.randn(5, 3))
            self.by = nn.Parameter(torch.randn(6, 1, 1))
            self.all = nn.Parameter(torch.randn(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.conv(x) / self.by - self.by) * self.all + self.where * 2

    module, x = Shifted(), torch.randn(2, 4, 7, 5)
    torch.testing.assert_close(compiled(module)(x), module(x), rtol=1e-4, atol=1e-4)
    assert frozen[0] is not None and frozen[0].folded == 3


def test_a_parameter_that_replaced_another_is_met_anew():
    computed: list[float] = []

    def values(given: Any) -> list[torch.Tensor]:
        computed.append(float(given[0]))
        return [given[0] * 2]

    run = FrozenProgram(lambda args: [float(args[-1])], values, [0])
    for number in (1.0, 2.0, 3.0):
        given = torch.tensor(number)
        assert run([given]) == run([given]) == [2 * number]
        del given
        gc.collect()
    assert computed == [1.0, 2.0, 3.0]


def test_few_models_are_remembered(monkeypatch):
    monkeypatch.setattr("polyfuse.runtime.frozen.values.MOST_MODELS", 2)
    computed: list[float] = []

    def values(given: Any) -> list[torch.Tensor]:
        computed.append(float(given[0]))
        return [given[0] * 2]

    run = FrozenProgram(lambda args: [float(args[-1])], values, [0])
    models = [torch.tensor(float(n)) for n in range(3)]
    for model in (*models, models[2], models[0]):
        assert run([model]) == [2 * float(model)]
    assert computed == [0.0, 1.0, 2.0, 0.0]


def test_values_that_are_packed_are_not_held_beside_what_was_made_of_them():
    """A value that is packed alone, one that is read as it is too, and a parameter."""
    step = FrozenStep("aten.mul.Tensor", (FrozenOperand(0), 2), {})
    values = FrozenValues((1,), (), (step, step), (1, 2), (((2, 3), (1, 2)), ((2, 3), (3, 1))))
    inputs = PackedInputs(
        tuple(FrozenStep("aten.clone.default", (FrozenOperand(k),), {}) for k in (0, 2, 3)),
        (None, ((2, 3), (1, 2)), None),
        frozenset({2}),
    )
    packed = values.packed(inputs, count=2)
    assert packed.sources == (1, 0)
    weight, other = torch.randn(2, 3), torch.randn(4)
    plain, first, second, third = packed([weight, other])
    assert torch.equal(plain, weight * 2) and torch.equal(first, other) and torch.equal(third, weight * 2)
    assert torch.equal(second, weight * 2) and second.stride() == (1, 2)  # packed from the layout asked for


@torch.no_grad()
def test_packed_weights_are_computed_again_after_a_change():
    seen: list[torch.Tensor] = []

    def program(args: list[Any]) -> list[Any]:
        seen.append(args[-1])
        return [args[-1].to_dense()]

    to_opaque = FrozenStep("aten.to_mkldnn.default", (FrozenOperand(0),), {})
    values = FrozenValues().packed(PackedInputs((to_opaque,), (None,), frozenset()), count=1)
    run, weight = FrozenProgram(program, values, values.sources), torch.randn(4, 4)
    for _ in range(2):
        for _ in range(2):
            assert torch.equal(run([weight])[0], weight)
        weight.mul_(3)
    assert len({id(value) for value in seen}) == 2


def test_modules_may_exchange_their_parameters(frozen):
    module, x = Scaled(), torch.randn(3, 5)
    run = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x))
    before = module.weight
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.load_state_dict({name: value + 1 for name, value in module.state_dict().items()})
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x))
        module.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert module.weight is before
    with torch.no_grad():
        module.weight.mul_(2)
        torch.testing.assert_close(run(x), module(x))
    assert len(frozen) == 1
