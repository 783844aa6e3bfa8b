"""What code generators share."""

from polyfuse.kit.contraction import Contraction, Operand, match

__all__ = ["Contraction", "Operand", "match"]
