"""What lowering did with each operator, for `explain` and for tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fallback:
    """One node that runs as an eager operator: for want of a lowering, or because that is faster."""

    node: str
    op: str
    reason: str


@dataclass
class LoweringReport:
    """Filled by `lower_graph`.

    Attributes:
        native: operators lowered, with how often.
        library: operators left to a library call on purpose, with how often.
        fallbacks: operators that run in eager mode because nothing here can express them.
        preferred: library calls that could have been lowered, but are faster so.
        realized: buffers made for lazy values, with the reason.
    """

    native: dict[str, int] = field(default_factory=dict)
    library: dict[str, int] = field(default_factory=dict)
    fallbacks: list[Fallback] = field(default_factory=list)
    preferred: list[Fallback] = field(default_factory=list)
    realized: dict[str, str] = field(default_factory=dict)

    def count(self, table: dict[str, int], op: str) -> None:
        """Add one to an operator's count."""
        table[op] = table.get(op, 0) + 1

    def text(self) -> str:
        """A few lines for people."""
        lines = [
            f"{sum(self.native.values())} operators lowered, {sum(self.library.values())} library calls,"
            f" {len(self.fallbacks)} eager fallbacks"
        ]
        lines += [f"  eager {f.op} ({f.node}): {f.reason}" for f in self.fallbacks]
        return "\n".join(lines)
