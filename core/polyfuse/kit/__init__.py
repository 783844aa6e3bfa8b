"""What code generators share.

`facts` (what is known of a kernel, arguments in one memory included), made of `values` and `access`; `spans`
(bounds of values), `affine` (steps of indices), `contraction` (matrix multiplications recognised), `products`
(that must be rounded once), `names` (that generated text can use), `patches` (convolutions as matmuls),
`roofline` (estimates of time), `writer` (indented text), `c_text` (indices as C, which is like them in many
languages).
"""

from polyfuse.kit.access import Access
from polyfuse.kit.affine import Affine, affine, fits_i32_throughout, is_multiple, row_major, stride
from polyfuse.kit.c_text import INFIX, c_index
from polyfuse.kit.contraction import Contraction, Operand, backward_slice, match
from polyfuse.kit.facts import KernelFacts, memories, without_aliases
from polyfuse.kit.names import with_safe_names
from polyfuse.kit.patches import patches_as_rows
from polyfuse.kit.products import shared_products
from polyfuse.kit.roofline import Machine, Work, fill, rounds, seconds, work_of
from polyfuse.kit.values import Definition
from polyfuse.kit.writer import Writer

__all__ = [
    "INFIX",
    "Access",
    "Affine",
    "Contraction",
    "Definition",
    "KernelFacts",
    "Machine",
    "Operand",
    "Work",
    "Writer",
    "affine",
    "backward_slice",
    "c_index",
    "fill",
    "fits_i32_throughout",
    "is_multiple",
    "match",
    "memories",
    "patches_as_rows",
    "rounds",
    "row_major",
    "seconds",
    "shared_products",
    "stride",
    "without_aliases",
    "with_safe_names",
    "work_of",
]
