"""Convolutions along one axis (sound, sequences) as convolutions of images that are one pixel high.

torch has no layout with channels last for tensors of three dimensions, but an image of one line has one, and
what is known of images then serves here, too: generated loops, packed weights. The views around a convolution
are no work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch.fx import GraphModule, Node

from polyfuse.frontend.rewrites.tools import aten, traced_call

_HEIGHT: Final = 2
"""Where the axis of one pixel is."""


def as_images(module: GraphModule, convolutions: Iterable[Node], mode: Any) -> dict[Node, Any]:
    """Have some convolutions of tensors of three dimensions, none of them transposed, convolve images.

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
