"""Index arithmetic: the language in which loops, shapes and addresses are written.

The files form a ladder: `index` (polynomials), `bounds`, `divmod` (installs ``//`` and ``%``), `extreme`,
`substitute`, `text`, `extent`. `convert`, which needs sympy, is imported by name where torch's sizes come in.
"""

from polyfuse.symbolic.bounds import atom_bounds, bounds, is_equal, is_less, is_nonnegative
from polyfuse.symbolic.divmod import floordiv, mod
from polyfuse.symbolic.extent import contiguous_strides, example_value, flat_index, storage_size, unflattened
from polyfuse.symbolic.extreme import maximum, minimum
from polyfuse.symbolic.index import (
    Atom,
    Index,
    IndexLike,
    Monomial,
    as_atom,
    atoms,
    axis,
    axis_name,
    axis_size,
    coefficient,
    exact,
    free_axes,
    free_symbols,
    host,
    of_atom,
    product,
    symbol,
)
from polyfuse.symbolic.substitute import substitute
from polyfuse.symbolic.text import evaluate, python_text

__all__ = [
    "Atom",
    "Index",
    "IndexLike",
    "Monomial",
    "as_atom",
    "atom_bounds",
    "atoms",
    "axis",
    "axis_name",
    "axis_size",
    "bounds",
    "coefficient",
    "contiguous_strides",
    "evaluate",
    "exact",
    "example_value",
    "flat_index",
    "floordiv",
    "free_axes",
    "free_symbols",
    "host",
    "is_equal",
    "is_less",
    "is_nonnegative",
    "maximum",
    "minimum",
    "mod",
    "of_atom",
    "product",
    "python_text",
    "storage_size",
    "substitute",
    "symbol",
    "unflattened",
]
