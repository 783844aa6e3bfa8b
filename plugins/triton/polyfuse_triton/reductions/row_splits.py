"""Rows whose chunks are programs of their own: which kernels allow it, and what such programs share."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Reduce
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts
from polyfuse_triton.build.meta import WORKSPACE

HEAD = 2
"""Shared words before those that programs publish: the counter, and one that aligns what follows."""
WORDS = 2
"""Words that a number takes at most."""
_PUBLISHED = (DType.f32, DType.f64, DType.i32, DType.i64)
"""Types of results that programs publish."""
_JOINED = frozenset({"sum", "prod", "min", "max", "argmin", "argmax", "welford", "online_softmax"})
"""Kinds of reductions whose parts are joined."""


class SharedWords:
    """Addresses, in the workspace, of the numbers that the programs of a kernel publish to each other."""

    def __init__(self) -> None:
        self._used = 0

    def address(self) -> str:
        """Where the next word of the first program is, as text; those of the others follow it."""
        self._used += WORDS
        return f"{WORKSPACE} + {HEAD} + {self._used - WORDS} * programs"


def can_look_back(kernel: Kernel, facts: KernelFacts) -> bool:
    """Whether chunks of a kernel's rows may be programs of their own: nothing but scans looks beyond one
    point, and nothing is written that another program reads.
    """
    ops = {stmt.op for section in kernel.sections for stmt in section.body}
    return "scan" in ops and "reduce" not in ops and _writes_apart(facts)


def can_join(kernel: Kernel, facts: KernelFacts) -> bool:
    """The same where nothing but reductions looks beyond one point."""
    statements = [stmt for section in kernel.sections for stmt in section.body]
    reductions = [stmt for stmt in statements if isinstance(stmt, Reduce)]
    if not reductions or any(stmt.op == "scan" for stmt in statements):
        return False
    if any(stmt.dtype not in _PUBLISHED or stmt.kind not in _JOINED for stmt in reductions):
        return False
    return _writes_apart(facts)


def _writes_apart(facts: KernelFacts) -> bool:
    """Whether no chunk of a row depends on what the others write."""
    for buffer in facts.written:
        here = [a for a in facts.accesses if a.buffer == buffer]
        if not all(a.looped for a in here) and any(a.mode not in ("set", CHECK_MODE) for a in here):
            # every chunk of a row would do it
            return False
        alone = len({a.index for a in here}) == 1 and not any(a.indirect for a in here)
        if not alone and not all(a.is_store for a in here):
            return False
    return True


def words(kernel: Kernel, programs: int | str) -> int | str:
    """Words of memory that a kernel's programs share: of each scan a program publishes its own total and that
    up to its end, of each reduction its result.
    """
    published = {"scan": 2, "reduce": 1}
    count = WORDS * sum(
        published.get(stmt.op, 0) * len(stmt.targets) for section in kernel.sections for stmt in section.body
    )
    return HEAD + count * programs if isinstance(programs, int) else f"{HEAD} + {count} * ({programs})"


def ticket() -> str:
    """The number of a program, in the order in which they start."""
    return f'tl.atomic_add({WORKSPACE}, 1, sem="relaxed").to(tl.int32)'
