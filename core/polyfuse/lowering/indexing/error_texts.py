"""What eager mode says of an index that is out of range, by operator: the exception, its text, and whether
negative indices count from the end. Texts may have `{index}`, `{size}` and `{dim}` in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx


@dataclass(frozen=True)
class ErrorText:
    """Of one check: the name of a built-in exception, its text, whether negative indices wrap."""

    kind: str
    text: str
    wraps: bool = False


_BOUNDS = "index {index} is out of bounds for dimension {dim} with size {size}"
_IN_SELF = ErrorText("IndexError", "index out of range in self")
_ALONG = ErrorText("RuntimeError", _BOUNDS)
_BRACKETS = ErrorText("IndexError", _BOUNDS, True)
_FLAT = ErrorText(
    "IndexError", "out of range: tried to access index {index} on a tensor of {size} elements.", True
)
_LABEL = ErrorText("IndexError", "Target {index} is out of bounds.")
_LABEL_RANGE = ErrorText("RuntimeError", "target out of range")
_COLUMNS = ErrorText("RuntimeError", "INDICES element is out of DATA bounds, id={index} axis_dim={size}")
_UNPOOLED = ErrorText("RuntimeError", "Found an invalid max index: {index}")

_TEXTS: Mapping[str, ErrorText] = MappingProxyType(
    {
        "aten.embedding": _IN_SELF,
        "aten.embedding_dense_backward": _IN_SELF,
        "aten.index_select": _IN_SELF,
        "aten.index_add": _IN_SELF,
        "aten.index_reduce": _IN_SELF,
        "aten.gather": _ALONG,
        "aten.scatter": _ALONG,
        "aten.scatter_add": _ALONG,
        "aten.scatter_reduce": _ALONG,
        "aten.index": _BRACKETS,
        "aten.select": _BRACKETS,
        "aten.index_put": _BRACKETS,
        "aten.index_fill": _BRACKETS,
        "aten.index_copy": ErrorText("IndexError", f"index_copy_(): {_BOUNDS}"),
        "aten.masked_scatter": ErrorText(
            "RuntimeError", "Number of elements of source < number of ones in mask"
        ),
        "aten.take": _FLAT,
        "aten.put": _FLAT,
        "aten.nll_loss_forward": _LABEL,
        "aten.nll_loss2d_forward": _LABEL,
        "aten.nll_loss_backward": _LABEL,
        "aten.nll_loss2d_backward": _LABEL,
        "aten.multi_margin_loss": _LABEL_RANGE,
        "aten.multilabel_margin_loss_forward": _LABEL_RANGE,
        "aten.max_unpool2d": _UNPOOLED,
        "aten.max_unpool3d": _UNPOOLED,
    }
)


def error_text_for(node: Any, rank: int, dim: int) -> ErrorText | None:
    """The error text of the operator that the user called, where that was decomposed, else that of the traced
    node's own. None where eager mode checks nothing: an operator's decomposition may compute indices that are
    in range by its own arithmetic, or limits them elsewhere.

    Args:
        node: the traced node that selects by an index.
        rank: dimensions of what it selects from.
        dim: which of them.
    """
    own = _base(ops.op_name(node.target))
    name = _called(node) or own
    error = _TEXTS.get(name)
    if error is None:
        return None
    if name == "aten.index_select" and rank > 1 and dim == 1:
        error = _COLUMNS  # eager mode has another loop for columns
    if name == "aten.index_add" and rank > 1 and dim in (0, rank - 1) and _is_plain_sum(node):
        error = _ALONG  # which eager mode adds up as scatter_add does
    return replace(error, text=error.text.replace("{dim}", str(dim)))


def _is_plain_sum(node: Any) -> bool:
    """Whether `index_add` of numbers was called without a factor."""
    value = node.meta.get("val")
    added = node.args[2] if len(node.args) > 2 else None
    scaled = isinstance(added, Node) and _called(added) == _called(node)
    return value is not None and value.dtype is not torch.bool and not scaled


def _called(node: Node) -> str:
    """The operator that a decomposition replaced, ``""`` where there was none."""
    original = fx.original_operator(node)
    return "" if original is None else _base(ops.op_name(original))


def _base(name: str) -> str:
    return name.rpartition(".")[0].removesuffix("_") if name.count(".") > 1 else name
