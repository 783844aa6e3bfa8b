"""Rewrites of scalar expressions: canonical forms that are exact in IEEE arithmetic, tried at
construction.
"""

from polyfuse.rewrite.casts import is_held
from polyfuse.rewrite.fold import round_half
from polyfuse.rewrite.scalar import cast, make, scalar, simplify, where

__all__ = ["cast", "is_held", "make", "round_half", "scalar", "simplify", "where"]
