"""Where complex arithmetic is done on real and imaginary parts.

No kernel has complex numbers: each operator on them is a call. Where operators follow each other (a rotary
embedding between `view_as_complex` and `view_as_real`), their steps on two real tensors fuse with each other
and with what is around them. Single operators stay whole, as do those on what other operators compute
(transforms): their parts would have to be looked at, and put together again, by calls.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from polyfuse.frontend.describe import alias_root
from polyfuse.frontend.rewrites.pairs.parts import PAIRS, REAL, SINKS, Part, Parts, Unsupported
from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_kind, same_layout, tensor_value
from polyfuse.torch_compat import ops


def compute_in_pairs(state: Rewriting) -> int:
    """Complex calls that follow each other become real ones; returns how many did."""
    if state.settings.numerics == "eager":
        return 0
    region = _Region(state)
    if not region.inner:
        return 0
    region.shrink()
    return sum(_convert(state, region, nodes) for nodes in region.parts() if region.is_worthwhile(nodes))


class _Region:
    """The complex calls of a graph that can be done on parts.

    Attributes:
        inner: those with complex results.
        sinks: those with real results.
    """

    def __init__(self, state: Rewriting) -> None:
        self.state = state
        nodes = state.nodes()
        self.order = {node: at for at, node in enumerate(nodes)}
        self.inner = {node for node in nodes if node.target in PAIRS and _is_complex(node)}
        self.sinks = {
            node for node in nodes if node.target in SINKS and not _is_complex(node) and self._reads(node)
        }

    def _reads(self, node: Node) -> bool:
        return any(item in self.inner for item in node.all_input_nodes)

    def outside(self, node: Node) -> bool:
        """Whether something else reads a result, itself or through views of it."""
        return any(
            (user not in self.inner and user not in self.sinks)
            or (user in self.inner and _is_view(user) and self.outside(user))
            for user in node.users
        )

    def shrink(self) -> None:
        """Leave out what has to be in memory as it is: in another layout, or as a view of other memory."""
        size = -1
        while size != len(self.inner) + len(self.sinks):
            size = len(self.inner) + len(self.sinks)
            for node in sorted(self.inner, key=self.order.__getitem__):
                if self.outside(node) and not _is_view(node) and not _may_be_made(node):
                    self.inner.discard(node)
            self.sinks = {node for node in self.sinks if self._reads(node) and self._is_free(node)}

    def _is_free(self, sink: Node) -> bool:
        """Whether the caller does not see that a result lies in the memory of another tensor."""
        if not _is_view(sink) or not self.state.escapes(sink):
            return True
        root = alias_root(sink)
        return root in self.inner and not self.outside(root)

    def parts(self) -> list[list[Node]]:
        """Calls that read each other's results, in order."""
        label: dict[Node, list[Node]] = {}
        for node in sorted(self.inner | self.sinks, key=self.order.__getitem__):
            mine = [node]
            for other in {id(label[i]): label[i] for i in node.all_input_nodes if i in label}.values():
                mine += other
            label |= dict.fromkeys(mine, mine)
        found = {id(group): group for group in label.values()}.values()
        return [sorted(group, key=self.order.__getitem__) for group in found]

    def made(self, nodes: Iterable[Node]) -> list[Node]:
        """Those that other calls read as complex tensors."""
        return [node for node in nodes if node in self.inner and not _is_view(node) and self.outside(node)]

    def is_worthwhile(self, nodes: list[Node]) -> bool:
        """Whether fewer calls are made: those on parts are none."""
        read = {item for node in nodes for item in node.all_input_nodes if _is_complex(item)}
        gone = [
            node
            for node in nodes
            if node in self.sinks
            or not _is_view(node)
            or (node.target is aten.view_as_complex.default and not self.outside(node))
        ]
        return len(gone) > len(read - self.inner) + len(self.made(nodes))


def _is_complex(node: Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype.is_complex


def _is_view(node: Node) -> bool:
    return ops.facts(node.target).is_view


def _may_be_made(node: Node) -> bool:
    """Whether a result has no mark that its numbers are to be read otherwise."""
    value = tensor_value(node)
    return value is not None and not value.is_conj() and not value.is_neg()


def _convert(state: Rewriting, region: _Region, nodes: list[Node]) -> int:
    """Replace some calls by calls on parts, unless that cannot be done for one of them."""
    if not state.spend():
        return 0
    parts, needed = Parts(state), set(region.made(nodes))
    instead: list[tuple[Node, Node]] = []
    try:
        for node in nodes:
            if node in region.sinks:
                parts.begin(node, node.all_input_nodes[0])
                instead += _without_sink(parts, node, state)
                continue
            parts.begin(node, node)
            real, imaginary = PAIRS[node.target](parts, node)
            parts.pairs[node] = _whole(parts, real), _whole(parts, imaginary)
            _check(parts, node)
            if node in needed:
                both = parts.joined(parts.pairs[node])
                instead.append((node, parts.call(aten.view_as_complex.default, both)))
        if not all(_looks_alike(node, new) for node, new in instead):
            raise Unsupported
    except (RuntimeError, Unsupported):
        for made in reversed(parts.made):
            state.graph.erase_node(made)
        return 0
    state.forget_escaping()
    for node, new in instead:
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in parts.made)
    for node in reversed(nodes):
        if not node.users:
            state.graph.erase_node(node)
    return len(nodes)


def _looks_alike(node: Node, new: Node) -> bool:
    """Whether a result has the layout that it was traced with; of one part alone, only the sizes count."""
    old, made = tensor_value(node), tensor_value(new)
    if old is None or made is None:
        return False
    return same_kind(old, made) if node.target is aten.select.int else same_layout(old, made)


def _without_sink(parts: Parts, node: Node, state: Rewriting) -> list[tuple[Node, Node]]:
    """What stands for a call with a real result. Who reads one part alone gets that, but for the caller, who
    sees that it has gaps.
    """
    pair, value = parts.of(node.args[0]), tensor_value(node)
    found: list[tuple[Node, Node]] = []
    if node.target is aten.view_as_real.default and value is not None:
        last = value.dim() - 1
        for user in node.users:
            at = user.args[2] if user.target is aten.select.int and user.args[1] in (last, -1) else None
            if at in (0, 1) and isinstance(at, int) and not state.escapes(user):
                found.append((user, parts.tensor(pair[at])))
        if len(found) == len(node.users):
            return found
    return [*found, (node, SINKS[node.target](parts, node))]


def _whole(parts: Parts, part: Part) -> Part:
    """A part in the size of the result: one may be of an operand that is broadcast."""
    return parts.tensor(part) if isinstance(part, Node) else part


def _check(parts: Parts, node: Node) -> None:
    """Parts have the type of the result's."""
    value = tensor_value(node)
    if value is None or value.dtype not in REAL:
        raise Unsupported
    for part in parts.pairs[node]:
        known = tensor_value(part)
        if isinstance(part, Node) and (known is None or known.dtype != REAL[value.dtype]):
            raise Unsupported
