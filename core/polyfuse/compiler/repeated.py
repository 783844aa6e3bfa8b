"""Repeated layers are compiled once: a graph that repeats itself is cut into regions, and of those that are
equal, one is traced, lowered, scheduled, tuned and built, and called for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from polyfuse.base.log import get_logger
from polyfuse.frontend.describe import output_args
from polyfuse.frontend.repeated import GraphRegion, regions_of
from polyfuse.runtime.regions.calls import RegionCall, Strides, in_order
from polyfuse.runtime.regions.chains import joined
from polyfuse.torch_compat.autograd_functions import PlainFunction, found_functions, is_plain
from polyfuse.torch_compat.tracing import aot, dynamo, fx

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings

_log = get_logger("compiler")

_LEAST_BYTES = 1 << 18
"""Of a region's tensors. A call costs some 30 microseconds, with its backward."""

_Region: TypeAlias = "tuple[Callable[..., Any], PlainFunction | None]"
"""As it was compiled, and what autograd would call of it."""

Compiler: TypeAlias = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_repeated(
    gm: Any, example_inputs: Sequence[Any], settings: Settings, compiler: Compiler
) -> Callable[..., Any] | None:
    """Compile each distinct region of what Dynamo captured; None where it is compiled whole.

    Args:
        compiler: compiles one graph.
    """
    if not _worthwhile(gm, example_inputs, settings):
        return None
    regions = regions_of(gm, example_inputs)
    uses = Counter(region.key for region in regions)
    repeated = [region for region in regions if uses[region.key] > 1]
    if settings.repeated_layers == "auto":
        repeated = [region for region in repeated if _is_large(region)]
    if not repeated:
        return None
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    examples = dict(zip(placeholders, example_inputs, strict=True))
    compiled: dict[Hashable, _Region] = {}
    for region in regions:
        if region.key not in compiled:
            with dynamo.context_of_its_own():
                inputs = [examples[n] if n in examples else dynamo.example_like(n) for n in region.inputs]
                module = fx.region_module(gm, region.nodes, region.inputs, region.outputs)
                with found_functions() as functions:
                    run = compiler(module, inputs)
                compiled[region.key] = run, _plain(functions, region)
                if dynamo.written_inputs():  # what other regions read then, nobody has compared
                    return None
    _log.info("a graph in %d regions, of which %d are compiled", len(regions), len(compiled))
    return dynamo.disable(_called(gm, placeholders, regions, compiled), reason="already compiled")


def _plain(functions: Sequence[Any], region: GraphRegion) -> PlainFunction | None:
    """A compiled region without what AOTAutograd does around it, where that is nothing."""
    if len(functions) != 1 or not is_plain(functions[0], len(region.inputs), len(region.outputs)):
        return None
    return PlainFunction(functions[0])


def _worthwhile(gm: Any, example_inputs: Sequence[Any], settings: Settings) -> bool:
    """Whether a graph may be cut: parts of it are not recorded, packed or stored apart, and gradients are
    wanted, as tracing these is what takes long.
    """
    if settings.repeated_layers == "off" or settings.device_graphs or settings.freezing:
        return False
    if not isinstance(gm, GraphModule) or not dynamo.returns_flat_tuple(gm):
        return False
    if settings.repeated_layers == "auto" and not _differentiated(example_inputs):
        return False
    if any(result is not None and not isinstance(result, Node) for result in output_args(gm)):
        return False
    return not (aot.stored_by_torch() or dynamo.is_bucket() or hasattr(gm, "saved_tensors_hooks_pack_0"))


def _is_large(region: GraphRegion) -> bool:
    """Whether calling a region apart costs little beside what it does, as far as its values are known."""
    nodes = (*region.inputs, *region.outputs, *region.nodes)
    if not all("example_value" in node.meta for node in nodes):
        return False
    values = [node.meta["example_value"] for node in nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    on_cpu = all(value.device.type == "cpu" for value in tensors)
    return on_cpu and sum(value.nbytes for value in tensors) >= _LEAST_BYTES


def _differentiated(example_inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(example, torch.Tensor) and example.requires_grad for example in example_inputs
    )


def _called(
    gm: GraphModule,
    placeholders: Sequence[Node],
    regions: Sequence[GraphRegion],
    compiled: dict[Hashable, _Region],
) -> Callable[..., Any]:
    """The compiled regions, called in order."""
    numbers = {node: number for number, node in enumerate(placeholders)}
    for region in regions:
        for node in region.outputs:
            numbers[node] = len(numbers)
    results = output_args(gm)
    last: dict[Node, int] = {}
    for turn, region in enumerate(regions):
        last.update((node, turn) for node in (*region.inputs, *region.outputs))
    escaping = {node for node in results if isinstance(node, Node)}

    def calls() -> Iterator[RegionCall]:
        for turn, region in enumerate(regions):
            ended = [n for n in (*region.inputs, *region.outputs) if last[n] == turn and n not in escaping]
            yield RegionCall(
                compiled[region.key][0],
                tuple(numbers[node] for node in region.inputs),
                tuple(numbers[node] for node in region.outputs),
                tuple(_strides(node) for node in region.outputs),
                tuple(numbers[node] for node in ended),
            )

    returned = [numbers[n] if isinstance(n, Node) else None for n in results]
    graphs = [compiled[region.key][1] for region in regions]
    return in_order(tuple(joined(tuple(calls()), graphs, returned)), returned, len(numbers))


def _strides(node: Node) -> Strides:
    return tuple(node.meta["example_value"].stride())
