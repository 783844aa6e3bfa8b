"""Each graph rewrite: that it happens, that it is exact, and that it does not happen where it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.base.settings import Settings
from polyfuse.frontend.decompositions.decompose import decomposition_table
from polyfuse.frontend.rewrites.noop import holds_exactly
from polyfuse.frontend.rewrites.passes import PASSES, rewrite_graph

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, float("inf"), float("-inf"), float("nan"), 3e38])


def rewritten(
    function: Callable[..., Any], *inputs: Any, **settings: Any
) -> tuple[GraphModule, dict[str, int]]:
    """Trace, rewrite as an inference graph, and check that bits did not change."""
    with torch.no_grad():
        module = make_fx(function, decomposition_table=dict(decomposition_table()), tracing_mode="fake")(
            *inputs
        )
        before = module(*inputs)
        counts = rewrite_graph(module, Settings(**settings), stage="inference")
        after = module(*inputs)
    before, after = (r if isinstance(r, tuple | list) else (r,) for r in (before, after))
    for old, new in zip(before, after, strict=True):
        assert old.dtype == new.dtype and old.stride() == new.stride()
        assert torch.equal(
            old.contiguous().flatten().view(torch.uint8), new.contiguous().flatten().view(torch.uint8)
        )
    return module, dict(counts)


def calls(module: GraphModule) -> list[str]:
    return [str(n.target).removeprefix("aten.") for n in module.graph.nodes if n.op == "call_function"]


def test_every_pass_has_its_own_name() -> None:
    names = [name for name, _ in PASSES]
    assert len(set(names)) == len(names)


def test_duplicates_are_merged() -> None:
    module, counts = rewritten(lambda x: x.sin() * x.sin(), SPECIAL)
    assert calls(module).count("sin.default") == 1 and counts["merge-duplicates"] == 1


def test_arguments_that_only_look_equal_are_distinguished() -> None:
    def function(x: torch.Tensor) -> Any:
        ints = torch.arange(3)
        return (x + 0.0).cos() + (x + -0.0).cos(), (ints * 1).sin(), (ints * 1.0).sin()

    module, _ = rewritten(function, SPECIAL)
    assert calls(module).count("add.Tensor") == 2
    assert calls(module).count("mul.Tensor") == 1


def test_random_numbers_are_neither_merged_nor_dropped() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand_like(x)
        return torch.rand_like(x) + torch.rand_like(x)

    with torch.no_grad():
        module = make_fx(function, tracing_mode="fake")(SPECIAL)
        rewrite_graph(module, Settings(), stage="inference")
    assert calls(module).count("rand_like.default") == 3


def test_two_returned_copies_stay_two() -> None:
    module, _ = rewritten(lambda x: (x.clone(), x.clone(), x.sin(), x.sin()), SPECIAL)
    assert calls(module).count("clone.default") == 2 and calls(module).count("sin.default") == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - 0).sin(),
        lambda x: (x * 1).sin(),
        lambda x: (x / 1).sin(),
        lambda x: (x**1).sin(),
        lambda x: (x + -0.0).sin(),
        lambda x: x.neg().neg().sin(),
        lambda x: (x * torch.ones(8)).sin(),
        lambda x: torch.where(x > 0, x, x).sin(),
        lambda x: x.clone().sin(),
        lambda x: x.repeat(1).sin(),
        lambda x: torch.constant_pad_nd(x, [0, 0]).sin(),
        lambda x: torch.cat([x]).sin(),
        lambda x: x.view(2, 4).t().t().reshape(8).sin(),
        lambda x: x.unsqueeze(0).squeeze(0).sin(),
        lambda x: x[:].expand(8).sin(),
        lambda x: x.double().float().sin(),
    ],
)
def test_calls_that_change_nothing_go(function: Any) -> None:
    module, _ = rewritten(function, SPECIAL)
    assert calls(module) == ["sin.default"]


def test_adding_zero_to_a_float_stays() -> None:
    module, _ = rewritten(lambda x: (x + 0).sin(), SPECIAL)
    assert "add.Tensor" in calls(module)
    module, _ = rewritten(lambda x: (x + 0).abs(), torch.arange(4))
    assert calls(module) == ["abs.default"]


@pytest.mark.parametrize("step", [torch.ceil, torch.floor, torch.round, torch.trunc])
def test_rounding_goes_where_numbers_are_whole(step: Any) -> None:
    assert calls(rewritten(lambda x: step(x).abs(), torch.arange(-2, 2))[0]) == ["abs.default"]
    assert len(calls(rewritten(lambda x: step(x).abs(), SPECIAL)[0])) == 2


def test_promotion_is_no_identity() -> None:
    module, _ = rewritten(lambda x: ((x * 1.0), (x / 1), (x * True)), torch.arange(4))
    assert len(calls(module)) >= 2


def test_broadcast_by_a_neutral_tensor_stays() -> None:
    module, _ = rewritten(lambda x: (x * torch.ones(2, 8)).sin(), SPECIAL)
    assert "mul.Tensor" in calls(module)


def test_returned_copy_of_an_input_stays() -> None:
    module, _ = rewritten(lambda x: (x.clone(), x * 1, x.t().t()), SPECIAL.view(2, 4))
    assert {"clone.default", "mul.Tensor"} <= set(calls(module))


def test_returned_copy_of_a_result_goes() -> None:
    module, _ = rewritten(lambda x: x.sin().clone(), SPECIAL)
    assert calls(module) == ["sin.default"]


def test_transposed_copy_stays_where_strides_are_read() -> None:
    module, _ = rewritten(
        lambda x: x.t().clone(memory_format=torch.contiguous_format).view(-1), SPECIAL.view(2, 4)
    )
    assert "clone.default" in calls(module)


def test_copy_that_changes_the_layout_stays() -> None:
    module, _ = rewritten(lambda x: (x.t().contiguous() + 1).view(-1).sin(), SPECIAL.view(2, 4))
    assert "clone.default" in calls(module)


def test_copy_that_begins_elsewhere_stays_where_it_is_viewed() -> None:
    rows = torch.arange(12.0).view(3, 4)
    module, counts = rewritten(lambda x: x[1].clone().unsqueeze(0) + 1, rows)
    assert "clone.default" in calls(module) and "remove-copies" not in counts
    module, counts = rewritten(lambda x: (x[1] * 1).unsqueeze(0) + 1, rows)
    assert "mul.Tensor" in calls(module)
    for function in (lambda x: x[1].clone() + 1, lambda x: x[0].clone().unsqueeze(0) + 1):
        module, counts = rewritten(function, rows)
        assert "clone.default" not in calls(module) and counts["remove-copies"] == 1


def test_a_copy_that_undoes_another_is_a_view() -> None:
    form = torch.contiguous_format
    numbers = torch.arange(24.0).view(2, 3, 4)

    def heads(x: torch.Tensor, y: torch.Tensor) -> Any:
        copy = x.sin().transpose(1, 2).clone(memory_format=form)
        return copy.transpose(1, 2).clone(memory_format=form).view(-1, 4) @ y, copy.view(-1, 3) @ y[:3]

    module, counts = rewritten(lambda x, y: heads(x, y)[0], numbers, torch.randn(4, 4))
    assert "clone.default" not in calls(module) and counts["undo-copies"] == 1
    # the first one stays where somebody else reads it
    module, counts = rewritten(heads, numbers, torch.randn(4, 4))
    assert calls(module).count("clone.default") == 1 and counts["undo-copies"] == 1


def test_copies_that_undo_nothing_stay() -> None:
    form = torch.contiguous_format
    numbers = torch.arange(24.0).view(2, 3, 4)

    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        copy = x.transpose(1, 2).clone(memory_format=form)
        return copy.permute(2, 0, 1).clone(memory_format=form).view(-1).sin()

    def returned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).clone(memory_format=form).transpose(1, 2).clone(memory_format=form)

    def source_written(x: torch.Tensor) -> torch.Tensor:
        value = x.sin()
        copy = value.transpose(1, 2).clone(memory_format=form)
        value.add_(1)
        return copy.transpose(1, 2).clone(memory_format=form).view(-1).sin()

    def copy_written(x: torch.Tensor) -> torch.Tensor:
        copy = x.sin().transpose(1, 2).clone(memory_format=form)
        copy.add_(1)
        return copy.transpose(1, 2).clone(memory_format=form).view(-1).sin()

    for function in (elsewhere, returned, source_written, copy_written):
        module, counts = rewritten(function, numbers.clone())
        assert "clone.default" in calls(module) and "undo-copies" not in counts


def test_reshape_that_copies_is_no_identity() -> None:
    rewritten(lambda x: x.t().reshape(4, 4).sin(), torch.arange(16.0).view(4, 4))
    rewritten(lambda x: x.t().contiguous().view(4, 4).t().sin(), torch.arange(16.0).view(4, 4))


def test_an_activation_of_joined_products_goes_to_each() -> None:
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 1, 1)

    def fire(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.conv2d(x, w), torch.conv2d(x, w[1:])], 1).clamp(-0.5, 2.0)

    module, counts = rewritten(fire, x, w)
    assert counts["activate-parts"] == 1 and calls(module)[-3:] == 2 * ["clamp.default"] + ["cat.default"]

    def squared(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([torch.conv2d(x, w), torch.conv2d(x, w[1:])], 1)
        return joined * joined

    module, counts = rewritten(squared, x, w)
    assert counts["activate-parts"] == 1 and calls(module)[-3:] == 2 * ["mul.Tensor"] + ["cat.default"]
    # another reader, a part that is no product, one that is there twice
    others = (
        lambda x, w: (c := torch.cat([torch.conv2d(x, w), torch.conv2d(x, w[1:])], 1)).relu() + c.sum(),
        lambda x, w: torch.cat([torch.conv2d(x, w), x], 1).relu(),
        lambda x, w: torch.cat([y := torch.conv2d(x, w), y], 1).relu(),
        lambda x, w: torch.cat([torch.conv2d(x, w), torch.conv2d(x, w[1:])], 1).softmax(1),
    )
    for other in others:
        assert "activate-parts" not in rewritten(other, x, w)[1]


def test_strides_that_only_regroup_become_a_view() -> None:
    module, _ = rewritten(lambda x: x.as_strided((4, 2), (2, 1)).sin(), SPECIAL)
    assert calls(module) == ["view.default", "sin.default"]
    module, _ = rewritten(lambda x: x.as_strided((4, 2), (1, 1)).sin(), SPECIAL)
    assert calls(module)[0] == "as_strided.default"
    module, _ = rewritten(lambda x: x[4:].as_strided((4,), (1,), 0).sin(), SPECIAL)
    assert "as_strided.default" in calls(module)


def test_narrowing_casts_stay() -> None:
    module, _ = rewritten(lambda x: x.bfloat16().float().sin(), SPECIAL)
    assert calls(module).count("_to_copy.default") == 2
    module, _ = rewritten(lambda x: x.int().float().sin(), torch.tensor([1.5, -2.5]))
    assert calls(module).count("_to_copy.default") == 2


def test_widening_casts_merge() -> None:
    module, _ = rewritten(lambda x: x.float().double().sin(), SPECIAL.bfloat16())
    assert calls(module).count("_to_copy.default") == 1
    module, _ = rewritten(lambda x: x.long().to(torch.int8).abs(), torch.arange(300, dtype=torch.int32))
    assert calls(module).count("_to_copy.default") == 1


def test_which_dtypes_hold_which() -> None:
    assert holds_exactly(torch.bfloat16, torch.float32) and holds_exactly(torch.int16, torch.float32)
    assert not holds_exactly(torch.float16, torch.bfloat16) and not holds_exactly(
        torch.bfloat16, torch.float16
    )
    assert not holds_exactly(torch.int32, torch.float32) and not holds_exactly(torch.uint8, torch.int8)
    assert holds_exactly(torch.bool, torch.uint8) and not holds_exactly(torch.uint8, torch.bool)


def test_uniform_tensors_stay_symbolic() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((4, 2), 3.0).t().contiguous() * 2 + torch.ones(2, 4)
        return x * scale.to(torch.float64)

    module, counts = rewritten(function, SPECIAL.view(2, 4).double())
    assert calls(module) == ["full.default", "mul.Tensor"]
    full = next(n for n in module.graph.nodes if "full" in str(n.target))
    assert full.args == ([2, 4], 7.0) and counts["fold-uniform"] >= 3


def test_lifted_constants_are_folded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1.0, 2.0, 4.0])
        return x * (table * 2).exp().sum() + torch.tensor(3.0)

    module, counts = rewritten(function, SPECIAL)
    assert calls(module).count("exp.default") == 0 and counts["fold-constants"] >= 1
    module, _ = rewritten(function, SPECIAL, constant_folding=False)
    assert calls(module).count("exp.default") == 1


def test_returned_constant_is_not_shared_between_calls() -> None:
    module, _ = rewritten(lambda x: (x + 1, torch.tensor([1.0, 2.0]).clone()), SPECIAL)
    first, second = module(SPECIAL)[1], module(SPECIAL)[1]
    assert first.data_ptr() != second.data_ptr()


def test_fuel_limits_the_number_of_rewrites() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 1).sin() + (x - 0).cos() + x.clone().exp()

    for fuel in range(4):
        _, counts = rewritten(function, SPECIAL, fuel=fuel)
        assert sum(n for name, n in counts.items() if "dead" not in name) == fuel


def test_new_nodes_keep_their_origin() -> None:
    module, _ = rewritten(lambda x: x.transpose(0, 1) @ x, SPECIAL.view(2, 4))
    permute = next(n for n in module.graph.nodes if "permute" in str(n.target))
    assert tuple(permute.meta["val"].shape) == (4, 2)


def test_a_conversion_to_the_type_that_a_tensor_has_goes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.prims.convert_element_type.default(x.sin(), torch.float32).cos()

    assert calls(rewritten(function, SPECIAL)[0]) == ["sin.default", "cos.default"]
    other, _ = rewritten(lambda x: torch.ops.prims.convert_element_type(x, torch.float64) + 1, SPECIAL)
    assert "prims.convert_element_type.default" in calls(other)


def test_what_a_forward_saves_is_computed_where_what_it_reads_is_made() -> None:
    def forward(x: torch.Tensor) -> Any:
        first = x.sin()
        second = first.exp()
        third = second.cos()
        noise = torch.rand_like(third)
        # what the partitioner puts behind all, the last first
        late, early = second.neg(), first.neg()
        return third, noise, late, early, early.abs() + late

    module = make_fx(forward, tracing_mode="fake")(SPECIAL)
    before = module(SPECIAL)
    counts = dict(rewrite_graph(module, Settings(), stage="forward"))
    assert counts["compute-saved-early"] == 4
    assert [name.split(".")[0] for name in calls(module)] == [
        *("sin", "neg", "abs", "exp", "neg", "add", "cos", "rand_like"),
    ]
    for old, new in zip(before[2:], module(SPECIAL)[2:], strict=True):
        assert torch.equal(old.view(torch.int32), new.view(torch.int32))


@pytest.mark.parametrize("stage", ["forward", "inference"])
def test_what_is_saved_stays_behind_what_writes_to_memory(stage: Any) -> None:
    def forward(x: torch.Tensor, state: torch.Tensor) -> Any:
        first = x.sin()
        state.copy_(first.exp())
        return first.cos(), first.neg()

    module = make_fx(forward, tracing_mode="fake")(SPECIAL, SPECIAL.clone())
    assert "compute-saved-early" not in dict(rewrite_graph(module, Settings(), stage=stage))


def test_constants_of_what_a_forward_saves_are_there_before_it() -> None:
    constant = torch.tensor([2.0])

    def forward(x: torch.Tensor) -> Any:
        first = x.sin()
        return first.exp().cos(), first * constant

    module = make_fx(forward, tracing_mode="real")(SPECIAL)
    (folded,) = (node for node in module.graph.nodes if node.op == "get_attr")
    next(iter(folded.users)).prepend(folded)
    before = module(SPECIAL)
    counts = dict(rewrite_graph(module, Settings(), stage="forward"))
    assert counts["compute-saved-early"] == 1
    module.graph.lint()
    torch.testing.assert_close(module(SPECIAL), before, equal_nan=True)
