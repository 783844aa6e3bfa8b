"""Where captured graphs repeat themselves, and what they are cut into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from polyfuse.frontend.repeated import GraphRegion, regions_of


def captured_regions(
    function: Callable[..., Any], *args: Any, dynamic: bool = False
) -> Sequence[GraphRegion]:
    """The regions of what Dynamo captures of a function, which runs in eager mode."""
    found: list[Sequence[GraphRegion]] = []

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Any:
        found.append(regions_of(gm, example_inputs))
        return gm.forward

    torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    (regions,) = found
    return regions


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A layer of ten nodes, over whose end one tensor passes."""
    y = F.layer_norm(x, (8,))
    first, second = (y @ weight).chunk(2, -1)
    return x + F.gelu(first) * second.sigmoid() * 0.5


def stack(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = layer(x, weight)
    return x


def weights(count: int) -> list[torch.Tensor]:
    return [torch.randn(8, 16, requires_grad=True) for _ in range(count)]


def test_equal_layers_have_one_key() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    regions = captured_regions(lambda x, w: stack(x.sin(), w).cos(), x, weights(8))
    uses = Counter(region.key for region in regions)
    assert max(uses.values()) >= 7
    assert len(uses) <= 3
    for region in regions[1:-1]:
        assert len(region.inputs) == 2
        assert len(region.outputs) == 1


def test_every_node_is_in_one_region_and_reads_what_came_before() -> None:
    regions = captured_regions(lambda x, w: stack(x, w).sum(), torch.randn(4, 8), weights(7))
    known = {node for region in regions for node in region.inputs if node.op == "placeholder"}
    for region in regions:
        assert known.issuperset(region.inputs)
        assert known.isdisjoint(region.nodes)
        known.update(region.nodes)


def test_no_cut_is_made_where_a_tuple_passes() -> None:
    regions = captured_regions(stack, torch.randn(4, 8), weights(8))
    assert regions
    for region in regions:
        assert all(isinstance(node.meta["example_value"], torch.Tensor) for node in region.outputs)


def test_layers_of_other_constants_have_other_keys() -> None:
    def scaled(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        for number, weight in enumerate(weights):
            x = layer(x, weight)
            if number == 7:
                x = F.leaky_relu(x, 0.3)
        return x

    uses = Counter(region.key for region in captured_regions(scaled, torch.randn(4, 8), weights(14)))
    assert len(uses) > 1
    assert max(uses.values()) >= 6


def test_what_earlier_layers_made_is_an_input() -> None:
    def shared(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        angle = x.cos()
        first = x
        for weight in weights:
            x = layer(x * angle, weight)
        return x + first * angle

    regions = captured_regions(shared, torch.randn(4, 8), weights(8))
    assert max(Counter(region.key for region in regions).values()) >= 7
    assert all(len(region.inputs) == 3 for region in regions[1:-1])


def _written(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = layer(x, weight).clone()
        x += 1
    return x


def _relu_in_place(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return F.relu(stack(x, weights).sin(), inplace=True)


def _set_items(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    y = stack(x, weights).clone()
    y[0] = 1
    return y


def _statistics(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return F.batch_norm(stack(x, weights), torch.zeros(8), torch.ones(8), training=True)


def _switched(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        y = stack(x, weights)
    return y + x


def _autocast(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu"):
        return stack(x, weights)


def _checkpointed(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = checkpoint(layer, x, weight, use_reentrant=False)
    return x


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "function", [_written, _relu_in_place, _set_items, _statistics, _switched, _autocast, _checkpointed]
)
def test_stays_whole(function: Callable[..., Any]) -> None:
    assert captured_regions(function, torch.randn(4, 8, requires_grad=True), weights(8)) == ()


def _angles_without_gradients(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        angle = x.cos()
    for weight in weights:
        x = layer(x * angle, weight)
    return x


def _layers_that_detach(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        with torch.no_grad():
            largest = x.abs().amax(-1, keepdim=True)
        x = layer(x / largest, weight)
    return x


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [_angles_without_gradients, _layers_that_detach])
def test_no_cut_is_made_where_gradients_are_switched_off(function: Callable[..., Any]) -> None:
    regions = captured_regions(function, torch.randn(4, 8, requires_grad=True), weights(8))
    assert max(Counter(region.key for region in regions).values()) >= 7
    for region in regions:
        switches = [node.args[0] for node in region.nodes if node.target is torch._C._set_grad_enabled]
        assert switches == [False, True] * (len(switches) // 2)


def test_attention_that_returns_no_weights_is_in_regions() -> None:
    attention = torch.nn.ModuleList(
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(7)
    )

    def encoder(x: torch.Tensor) -> torch.Tensor:
        for block in attention:
            x = block(x)
        return x

    regions = captured_regions(encoder, torch.randn(2, 4, 8))
    assert max(Counter(region.key for region in regions).values()) >= 6


def test_stays_whole_with_sizes_that_vary() -> None:
    assert captured_regions(stack, torch.randn(4, 8), weights(8), dynamic=True) == ()


def test_stays_whole_with_few_layers() -> None:
    assert captured_regions(stack, torch.randn(4, 8), weights(5)) == ()
