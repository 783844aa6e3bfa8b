"""What may share a kernel with a matrix product: what is done with each of its results, and no other loop."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.nodes import Reduction
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.plugin import Backend
from polyfuse.schedule.fusion.units import Unit

__all__ = ["has_product", "leader"]


def has_product(unit: Unit) -> bool:
    """Whether a unit computes a matrix product as a loop."""
    return any(isinstance(m.node, Reduction) and m.node.kind in CONTRACTIONS for m in unit.members)


def leader(backends: Mapping[str, Backend], first: Unit, second: Unit) -> Unit | str:
    """The unit whose backend generates both, or why no backend does.

    Units of different backends stay apart, but that of a product, chosen because it is fast, takes what it
    claims of another's.
    """
    products = [unit for unit in (first, second) if has_product(unit)]
    if len(products) == 2:
        return "each is a matrix product"
    if products:
        return _beside(backends, products[0], second if products[0] is first else first, first)
    if first.backend != second.backend:
        return f"different backends generate them, {first.backend} and {second.backend}"
    return first


def _beside(backends: Mapping[str, Backend], product: Unit, other: Unit, first: Unit) -> Unit | str:
    if other.space.raxes:
        return "a matrix product shares its loop with nothing"
    if product is not first or not other.before & product.bits:
        return "it is no function of the matrix product"
    backend = backends[product.backend]
    for member in other.members:
        if other.backend != product.backend:
            answer = backend.claims(member.node)
            if not answer:
                reason = getattr(answer, "reason", "no reason given")
                return f"backend {product.backend}, chosen for the product, refuses it: {reason}"
    return product
