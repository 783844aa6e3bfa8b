"""Structural addresses: equal for equal IR, in any process."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.base.digest import digest
from polyfuse.ir.expr import Expr
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node
from polyfuse.ir.text.print import text
from polyfuse.symbolic import IndexLike


def ir_digest(item: Kernel | Graph | Node | Expr | IndexLike) -> str:
    """The address of an item's text without comments, and without a graph's own name, which is arbitrary."""
    named = replace(item, name="_") if isinstance(item, Graph) else item
    return digest(text(named, comments=False))
