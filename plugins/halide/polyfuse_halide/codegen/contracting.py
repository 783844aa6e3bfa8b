"""Which kernels contract: those that have much to gain and little to walk.

Where arithmetic is strict stage by stage, Halide walks everything that a stage is defined to be, once for
each way to each part of it. So what uses its operands many times over, again and again, is left as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Reduce
from polyfuse.ir.types import DType
from polyfuse_halide.codegen.ops import MATH

_GAINS = MATH - {"atan2", "digamma", "erfc", "erfinv", "fmod", "hypot", "lgamma", "pow"}
"""Functions of one number that are polynomials."""
_ONCE = frozenset(
    ("add", "sub", "mul", "div", "where", "neg", "abs", "sqrt", "rsqrt", "copysign", "const", "eq")
)
"""What else has each operand once."""
_USES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("lt", "le", "gt", "ge", "ne", "sign", "isnan", "isinf", "bitcast"), 2),
        **dict.fromkeys(("minimum", "maximum", "fmin", "fmax", "cast", "floor", "ceil", "trunc", "round"), 3),
        **dict.fromkeys(("floor_div", "remainder", "fmod", "pow", "lgamma", "digamma", "erfinv"), 1 << 20),
    }
)
"""How often others have theirs at most; the rest counts as ten times."""
_MOST = 20_000
"""Parts of what a value is made of, each as often as it is met, that are walked in a few milliseconds."""


def contracts(kernel: Kernel) -> bool:
    """Whether the functions of a kernel multiply and add in one step."""
    stmts = [s for part in kernel.sections for s in part.body]
    if not any(s.op in _GAINS and s.dtype is DType.f32 for s in stmts):
        return False
    if any(isinstance(s, Reduce) and s.kind in ("argmin", "argmax") for s in stmts):
        return False
    parts: dict[str, int] = {}
    for stmt in stmts:
        uses = 1 if stmt.op in _GAINS or stmt.op in _ONCE else _USES.get(stmt.op, 10)
        # what a loop has found is a stage of its own
        count = 1 if stmt.op in ("reduce", "scan") else 4 + uses * sum(parts[a] for a in stmt.args)
        if count > _MOST:
            return False
        parts.update((target, count) for target in stmt.targets)
    return True
