"""Arguments of a call that lie in memory which the same call writes.

In a functional graph such a call gets clones of what it writes, and an argument that only reads the same
memory has what was there before, whatever the operator does first. Which arguments were one memory in the
user's program is known until equal nodes are merged: fake values of views share a storage, those of two
equal results do not.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake

SHARED = "arguments_in_written_memory"
"""The entry of `Node.meta`: from the name of an argument to the position of the tensor that is written, among
the call's `_all_bases`, and the fake values of both."""


def note_shared_arguments(gm: GraphModule) -> None:
    """Note them at each call, before equal nodes are merged."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and ops.op_name(node.target) == "higher_order.auto_functionalized_v2":
            found = _shared(node, node.kwargs["_all_bases"])
            if found:
                node.meta[SHARED] = found


def _shared(node: Node, bases: Any) -> dict[str, tuple[int, Any, Any]]:
    names = ops.argument_names(node.args[0]) if isinstance(node.args[0], ops.OpOverload) else ()
    found = {}
    for name in names:
        given = node.kwargs.get(name)
        if not isinstance(given, Node):
            continue
        for position, base in enumerate(bases):
            part, whole = given.meta.get("val"), base.meta.get("val")
            if fake.share_storage(part, whole):
                found[name] = position, part, whole
                break
    return found
