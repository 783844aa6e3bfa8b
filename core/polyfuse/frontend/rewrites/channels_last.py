"""Convolutions on channels-last tensors, and what surrounds them laid out so that nothing is converted.

The operands of convolutions are brought into the layout, and every value that is computed from their results
takes the layout that its operator gives it then. What the caller gets is as it was traced, and so is what
operators read that look at strides or draw random numbers in memory order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.describe import output_node
from polyfuse.frontend.graph import CHANNELS_LAST, ChannelsLast, ReadsElements
from polyfuse.frontend.rewrites.tools import aten, same_number, tensor_value, traced_call
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake, fx, shapes

_ACTIVATIONS: Final = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
}
"""Positions of the operands whose channels come last."""

_WEIGHTS: Final = {aten.convolution.default: 1, aten.convolution_backward.default: 2}
"""Position of the weight. Some libraries lay it out for their algorithm anyway; torch copies it for others at
every call, and here one copy serves the forward and its gradients."""

_IMAGE: Final = 0
"""Position of the image of a convolution."""

_ONE_AXIS: Final = 3
"""Dimensions of what is convolved along one axis."""

_BY_STRIDES: Final = (
    "as_strided",
    "as_strided_copy",
    "as_strided_scatter",
    "is_contiguous",
    "sym_storage_offset",
    "sym_stride",
    "view_as_complex",
    "view_as_real",
)
"""Operators whose result depends on the strides of an operand."""

_VIEWS: Final = (aten.view.default, aten._unsafe_view.default)
"""Operators that join and split dimensions, and never copy."""

_Wants: TypeAlias = Callable[[torch.Tensor, torch.Tensor], ChannelsLast]

_LIGHT: Final = 128
"""Multiplications for each number of the image and of the result, below which converting costs more than
channels last gain."""
_FEW_PIXELS: Final = 1024
"""Pixels of all results, below which kernels that read channels last gain more than that."""

_HEIGHT: Final = 2
"""Where the axis of one pixel is."""


def spread_channels_last(
    module: GraphModule,
    wants: _Wants,
    light: bool = False,
    elementwise: ReadsElements | None = None,
    stays: Callable[[Node], bool] | None = None,
) -> int:
    """Lay out a graph for convolutions with channels last: those operands that `wants` says of the activation
    and the weight of each.

    Args:
        light: whether a light convolution alone stays as it was traced.
        elementwise: whether an operator that is not torch's, by its name and the type of a device, computes
            element by element, and its result lies as its first operand does.
        stays: which calls keep their operands as they were traced.

    Returns:
        how many convolutions and gradients of convolutions read such tensors now.
    """
    still = {node for node in module.graph.nodes if stays is not None and stays(node)}
    found = {node: layout for node, layout in _wanted(module, wants).items() if node not in still}
    if not any(_groups(node) == 1 for node in found):
        return 0
    if light and _is_light(found):
        return 0
    mode = fake.detect_fake_mode(fx.placeholder_values(module.graph))
    values = ((node, tensor_value(node.args[0])) for node in found)
    lines = [node for node, value in values if value is not None and value.dim() == _ONE_AXIS]
    walk = _Walk(module, found, mode, elementwise)
    if lines:
        walk.take_over(as_images(module, lines, mode))
        again = _wanted(module, wants)
        walk.convolutions = {node: layout for node, layout in again.items() if node not in still}
    for node in list(module.graph.nodes):
        if node in still:
            walk.restore(node)
        elif node.op == "call_function":
            walk.visit(node)
    walk.restore(output_node(module))
    return walk.changed


def _is_light(found: Mapping[Node, ChannelsLast]) -> bool:
    """Whether the convolutions of a graph are a light one alone, which stays as it was traced."""
    if len(found) != 1 or ChannelsLast.ACTIVATIONS_ALONE in found.values():
        return False
    return is_light_alone(*found)


def _wanted(module: GraphModule, wants: _Wants) -> dict[Node, ChannelsLast]:
    return {node: layout for node in module.graph.nodes if (layout := _layout(node, wants))}


def _layout(node: Node, wants: _Wants) -> ChannelsLast:
    if node.op != "call_function" or node.target not in _ACTIVATIONS:
        return ChannelsLast.NONE
    value, weight = tensor_value(node.args[0]), tensor_value(node.args[_WEIGHTS[node.target]])
    if value is None or weight is None or not value.is_floating_point():
        return ChannelsLast.NONE
    line = value.dim() == weight.dim() == _ONE_AXIS and node.target is aten.convolution.default
    if value.dim() not in CHANNELS_LAST and not (line and not node.args[6]):
        return ChannelsLast.NONE
    return wants(value, weight)


def _groups(node: Node) -> Any:
    return node.args[8] if node.target is aten.convolution.default else node.args[9]


@dataclass
class _Walk:
    """One pass over a graph, in order: which values lie otherwise than they were traced."""

    module: GraphModule
    convolutions: Mapping[Node, ChannelsLast]
    mode: Any
    elementwise: ReadsElements | None
    changed: int = 0
    traced: dict[Node, Any] = field(default_factory=dict)
    """The traced value of each node that lies otherwise now."""
    _last: dict[Node, Node] = field(default_factory=dict)
    _restored: dict[Node, Node] = field(default_factory=dict)

    def take_over(self, traced: Mapping[Node, Any]) -> None:
        """Note which values lie otherwise than they were traced already."""
        for node, value in traced.items():
            if _strides(value) != _strides(node.meta["val"]):
                self.traced[node] = value

    def visit(self, node: Node) -> None:
        """Lay out one call's operands, and find out how its result lies then."""
        before = node.args
        if node in self.convolutions:
            self._bring(node)
        if node.args is before and not any(a in self.traced for a in node.all_input_nodes):
            return
        if not _follows(node, self.elementwise):
            self.restore(node)
            return
        args, kwargs = fx.value_of(node.args), fx.value_of(node.kwargs)
        try:
            value = fake.fake_evaluate(self.mode, node.target, args, kwargs)
        except (RuntimeError, ValueError):  # a view that such strides do not allow
            value = None
        if value is None or (node.target in _VIEWS and _joins_apart(args[0], value)):
            node.args = before
            self.restore(node)
            return
        if node in self.convolutions:
            self.changed += 1
        before_value, node.meta["val"] = self.traced.pop(node, node.meta["val"]), value
        if node.target is aten.convolution.default and node in self.convolutions and not _is_last(value):
            # torch's convolutions over space and time give their channels second whatever they read
            node = self._behind(node)
        if _strides(node.meta["val"]) != _strides(before_value):
            self.traced[node] = before_value

    def _behind(self, node: Node) -> Node:
        """A convolution's result with its channels last, for all who read it."""
        wanted = {"memory_format": CHANNELS_LAST[node.meta["val"].dim()]}
        made = self._call(node.next, aten.clone.default, (node,), wanted)
        node.replace_all_uses_with(made, lambda user: user is not made)
        return made

    def restore(self, node: Node) -> None:
        """Give a node its operands as they were traced."""
        if _writes_only(node):
            return
        for source in [a for a in node.all_input_nodes if a in self.traced]:
            node.replace_input_with(source, self._as_traced(source, node))

    def _bring(self, node: Node) -> None:
        args = list(node.args)
        positions = _ACTIVATIONS[node.target]
        if self.convolutions[node] >= ChannelsLast.ALL:
            positions = (*positions, _WEIGHTS[node.target])
        for position in positions:
            source, value = args[position], tensor_value(args[position])
            if not isinstance(source, Node) or value is None:
                continue
            if position == _IMAGE and node.target is aten.convolution.default and _lies_either_way(value):
                args[position] = self._one_channel_last(node, source, value.dim())
                continue
            if _is_last(value):
                continue
            if source not in self._last:
                wanted = {"memory_format": CHANNELS_LAST[value.dim()]}
                self._last[source] = self._call(node, aten.clone.default, (source,), wanted)
            args[position] = self._last[source]
        if args != list(node.args):
            node.args = tuple(args)

    def _one_channel_last(self, node: Node, source: Node, dims: int) -> Node:
        """A view of an image of one channel whose strides say that its channels come last."""
        if source not in self._last:
            plain = self._call(node, aten.squeeze.dim, (source, 1), {})
            last = self._call(node, aten.unsqueeze.default, (plain, -1), {})
            order = [0, dims - 1, *range(1, dims - 1)]
            self._last[source] = self._call(node, aten.permute.default, (last, order), {})
        return self._last[source]

    def _as_traced(self, source: Node, user: Node) -> Node:
        """`source`, laid out as it was traced, for `user` and those after it."""
        if source not in self._restored:
            old = self.traced[source]
            if old.is_contiguous():
                made = self._call(
                    user, aten.clone.default, (source,), {"memory_format": torch.contiguous_format}
                )
            else:
                size, stride = tuple(old.shape), tuple(old.stride())
                about = {"dtype": old.dtype, "device": old.device}
                room = self._call(user, aten.empty_strided.default, (size, stride), about)
                made = self._call(user, aten.copy.default, (room, source), {})
            self._restored[source] = made
        return self._restored[source]

    def _call(self, user: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        origin = next((a for a in args if isinstance(a, Node)), user)
        with self.module.graph.inserting_before(user):
            return traced_call(self.module.graph, self.mode, origin, target, args, kwargs)


def _follows(node: Node, elementwise: ReadsElements | None) -> bool:
    """Whether a call computes the same from operands in another layout."""
    name = ops.op_name(node.target)
    if name == "operator.getitem":
        return True
    facts = ops.facts(node.target)
    value = node.meta.get("val")
    if elementwise is not None and isinstance(value, torch.Tensor) and elementwise(name, value.device.type):
        return True
    if not facts.is_operator or not name.startswith(("aten.", "prims.")):
        return False
    return not (
        facts.is_random
        or facts.data_dependent
        or facts.keeps_strides
        or facts.mutates
        or facts.effects
        or name.split(".")[1] in _BY_STRIDES
    )


def _writes_only(node: Node) -> bool:
    """Whether a call copies into something, from whatever layout."""
    return node.op == "call_function" and node.target is aten.copy_.default


def _is_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=CHANNELS_LAST[value.dim()])


def _lies_either_way(value: torch.Tensor) -> bool:
    """Whether an image of one channel lies in both layouts, and torch takes it for one with its channels
    second: it then lays out the result of a convolution likewise.
    """
    return same_number(value.shape[1], 1) and _is_last(value) and not same_number(value.stride(1), 1)


def _joins_apart(value: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether a view joins dimensions whose elements do not follow each other.

    What torch traces raises then, but not where a dimension of one lies between them, as the height of an
    image of one line does between its channels and its width.
    """
    if not any(same_number(n, 1) for n in value.shape) or any(same_number(n, 0) for n in value.shape):
        return False
    runs: list[tuple[Any, Any]] = []  # elements that follow each other, and how far apart
    for size, stride in zip(value.shape, value.stride(), strict=True):
        if same_number(size, 1):
            continue
        follows = bool(runs) and same_number(runs[-1][1], size * stride)
        runs[-1:] = [(runs[-1][0] * size, stride)] if follows else [*runs[-1:], (size, stride)]
    left = [size for size in view.shape if not same_number(size, 1)]
    for count, _ in runs:
        total: Any = 1
        while not same_number(total, count):
            if not left:
                return True
            total = total * left.pop(0)
    return False


def _strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return shapes.exprs_of(value.stride())
    if isinstance(value, tuple | list):
        return [_strides(item) for item in value]
    return None


def is_light_alone(node: Node) -> bool:
    """Whether a call convolves an input of the graph to its result on the CPU, with so few multiplications
    that a library does it sooner as it was traced.

    Sizes that vary are not judged, nor are transposed convolutions and images with their channels last.
    """
    if node.target is not aten.convolution.default or node.args[6]:
        return False
    source, result = node.args[0], tensor_value(node)
    weight, value = tensor_value(node.args[1]), tensor_value(source)
    if result is None or weight is None or value is None or not device_of(value.device.type).is_host:
        return False
    if getattr(source, "op", "") != "placeholder" or any(user.op != "output" for user in node.users):
        return False
    sizes = [_counts(tensor.shape) for tensor in (value, weight, result)]
    if not all(sizes) or not value.is_contiguous() or value.stride(1) == 1:
        return False
    image, window, made = (math.prod(size) for size in sizes)
    products, pixels = made * window // sizes[1][0], made // sizes[2][1]
    return pixels >= _FEW_PIXELS and products < _LIGHT * (image + made)


def _counts(shape: Any) -> tuple[int, ...]:
    """Sizes that are known, all of them positive; else nothing."""
    sizes = tuple(shape)
    return sizes if all(type(size) is int and size > 0 for size in sizes) else ()


def as_images(module: GraphModule, convolutions: Iterable[Node], mode: Any) -> dict[Node, Any]:
    """Have some convolutions of tensors of three dimensions, none of them transposed, convolve images of one
    line: torch has no layout with channels last for three dimensions. The views around them are no work.

    Args:
        mode: the fake mode of the graph's traced values.

    Returns:
        the traced value of each convolution by the node that has its result now. An image whose channels come
        last has a result that is laid out likewise, which its users were not traced with.
    """
    graph = module.graph
    traced: dict[Node, Any] = {}

    def call(like: Node, target: Any, *args: Any) -> Node:
        return traced_call(graph, mode, like, target, args)

    for node in convolutions:
        image, weight, bias, stride, padding, dilation, transposed, margin, groups = node.args
        with graph.inserting_before(node):
            image = call(image, aten.unsqueeze.default, image, _HEIGHT)
            weight = call(weight, aten.unsqueeze.default, weight, _HEIGHT)
            numbers = [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *margin], groups
            found = call(node, aten.convolution.default, image, weight, bias, *numbers)
            line = call(node, aten.squeeze.dim, found, _HEIGHT)
        traced[line] = node.meta["val"]
        node.replace_all_uses_with(line)
        graph.erase_node(node)
    return traced
