"""Passes over memory saved, where rows do not fit in registers and every section reads them again.

The maximum of a row and the sum of exponentials below it take one pass instead of two: the sum is scaled
whenever a larger maximum is met. So do a sum, the sum of differences from the mean made of it and that of
their squares: all come from running moments.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Compute, Constant, Load, Reduce, Scan, Statement, key
from polyfuse.kit import KernelFacts
from polyfuse.symbolic import product


def with_fewer_passes(kernel: Kernel) -> Kernel:
    """The kernel with such pairs of reductions joined."""
    if kernel.numerics != "fast":
        return kernel
    edit = _Edit()
    terms = _Terms(kernel)
    _join_softmax(kernel, terms, edit)
    _join_moments(kernel, terms, edit)
    if not edit.changed:
        return kernel
    sections: list[Section] = []
    for section in kernel.sections:
        body = tuple(edit.changed.get(id(s), s) for s in section.body if id(s) not in edit.dropped)
        sections.append(Section(section.looped, body))
        behind = tuple(edit.behind[id(s)] for s in section.body if id(s) in edit.behind)
        if behind:
            sections.append(Section(False, behind))
    return replace(kernel, sections=tuple(sections))


@dataclass
class _Edit:
    """What becomes of statements, by their identity: another one, nothing, or one more behind the loop."""

    changed: dict[int, Statement] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    behind: dict[int, Statement] = field(default_factory=dict)


def _reductions(kernel: Kernel, kind: str) -> list[Reduce]:
    return [
        stmt
        for section in kernel.sections
        for stmt in section.body
        if isinstance(stmt, Reduce) and stmt.kind == kind and stmt.dtype.is_float
    ]


def _join_softmax(kernel: Kernel, terms: _Terms, edit: _Edit) -> None:
    largest: dict[Any, Reduce] = {}
    for stmt in _reductions(kernel, "max"):
        largest.setdefault(terms.of(stmt.args[0]), stmt)
    for stmt in _reductions(kernel, "sum"):
        found = terms.exponent(stmt.args[0])
        first = largest.get(found[0]) if found is not None else None
        if found is None or first is None or found[1] != first.targets[0] or id(first) in edit.changed:
            continue
        targets = (first.targets[0], stmt.targets[0])
        edit.changed[id(first)] = replace(first, targets=targets, kind="online_softmax")
        edit.dropped.add(id(stmt))


def _join_moments(kernel: Kernel, terms: _Terms, edit: _Edit) -> None:
    sums = {stmt.targets[0]: stmt for stmt in _reductions(kernel, "sum")}
    for stmt in sums.values():
        found = terms.square_of_difference(stmt.args[0])
        if found is None or id(stmt) in edit.dropped:
            continue
        term, mean = found
        first = sums.get(terms.averaged(mean) or "")
        if first is None or first is stmt or id(first) in edit.changed or id(first) in edit.dropped:
            continue
        if terms.of(first.args[0]) != term:
            continue
        name = first.targets[0]
        targets = (mean, stmt.targets[0], f"{name}_count")
        edit.changed[id(first)] = replace(first, targets=targets, kind="welford")
        edit.behind[id(first)] = Compute(name, "mul", (targets[0], targets[2]), first.dtype)
        edit.dropped.update((id(stmt), id(terms.defined(mean))))
        # distances from the mean add up to nothing: that of moments is not rounded as a sum is
        for other in sums.values():
            if id(other) not in edit.dropped and terms.difference(other.args[0]) == (term, mean):
                edit.dropped.add(id(other))
                edit.behind[id(other)] = Constant(other.targets[0], 0.0, other.dtype)


class _Terms:
    """What values are, whatever they are called: equal terms are equal values at one point."""

    def __init__(self, kernel: Kernel) -> None:
        self._facts = KernelFacts.of(kernel)
        self._memo: dict[str, Any] = {}
        self._count = product(kernel.rsizes)

    def of(self, name: str) -> Any:
        """The term of a value."""
        if name not in self._memo:
            self._memo[name] = self._term(name, self._facts.definition(name))
        return self._memo[name]

    def defined(self, name: str) -> Statement:
        """The statement that makes a value."""
        return self._facts.definition(name)

    def exponent(self, name: str) -> tuple[Any, str] | None:
        """The term of `v` and the name of `m`, where a value is ``exp(v - m)``."""
        power = self._facts.definition(name)
        return self.difference(power.args[0]) if power.op == "exp" else None

    def square_of_difference(self, name: str) -> tuple[Any, str] | None:
        """The term of `v` and the name of `m`, where a value is ``(v - m) * (v - m)``."""
        product = self._facts.definition(name)
        if product.op != "mul" or self.of(product.args[0]) != self.of(product.args[1]):
            return None
        return self.difference(product.args[0])

    def averaged(self, name: str) -> str | None:
        """The name of `s`, where a value is `s` divided by the number of points that are reduced."""
        stmt = self._facts.definition(name)
        if stmt.op not in ("mul", "div") or not isinstance(self._count, int):
            return None
        share = float(self._count) if stmt.op == "div" else 1.0 / max(1, self._count)
        for other, constant in (stmt.args, stmt.args[::-1] if stmt.op == "mul" else stmt.args):
            number = self._facts.definition(constant)
            if isinstance(number, Constant) and abs(number.value - share) <= 1e-6 * share:
                return other
        return None

    def difference(self, name: str) -> tuple[Any, str] | None:
        """The term of `v` and the name of `m`, where a value is ``v - m``."""
        stmt = self._facts.definition(name)
        return (self.of(stmt.args[0]), stmt.args[1]) if stmt.op == "sub" else None

    def _term(self, name: str, stmt: Statement) -> Any:
        match stmt:
            case Reduce() | Scan():
                return name
            case Load() if stmt.buffer in self._facts.written:
                stored = self._facts.forwarded(stmt)
                return name if stored is None else self.of(stored)
        return (key(stmt), tuple(self.of(a) for a in stmt.args))
