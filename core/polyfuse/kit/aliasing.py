"""Arguments that may be one memory (`Kernel.aliases`), as code generators ask about them.

A generator that reads, computes and writes in the order of the statements needs nothing of this. One that
reads an element more than once, ahead of its turn, or from several threads asks here what its loads must not
be moved across, and refuses (`Source.refused_aliases`) the pairs for which its text would be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.ir.statements import Store

__all__ = ["changed_arguments", "may_alias", "memories", "same_names", "without_aliases"]


def memories(kernel: Kernel) -> Mapping[str, str]:
    """For every argument that may be one memory with others, the first of these in calling order."""
    groups: list[set[str]] = []
    for alias in kernel.aliases:
        pair = {alias.output, alias.input}
        joined = [g for g in groups if not pair.isdisjoint(g)]
        groups = [g for g in groups if pair.isdisjoint(g)]
        groups.append(pair.union(*joined))
    order = [arg.name for arg in kernel.args]
    firsts = [next(name for name in order if name in group) for group in groups]
    return {name: first for first, group in zip(firsts, groups, strict=True) for name in sorted(group)}


def may_alias(kernel: Kernel, first: str, second: str) -> bool:
    """Whether two buffers may be one memory."""
    found = memories(kernel)
    return first == second or (first in found and found[first] == found.get(second))


def same_names(kernel: Kernel, names: Collection[str]) -> frozenset[str]:
    """Buffers that may be one memory with some of these, themselves included."""
    found = memories(kernel)
    touched = {found[name] for name in names if name in found}
    return frozenset(names) | frozenset(name for name, first in found.items() if first in touched)


def changed_arguments(kernel: Kernel) -> frozenset[str]:
    """Buffers whose memory the kernel may change: what is loaded from there may be something else later."""
    stored = {s.buffer for section in kernel.sections for s in section.body if isinstance(s, Store)}
    return same_names(kernel, stored)


def without_aliases(kernel: Kernel, refused: Collection[Alias] | None = None) -> Kernel:
    """The kernel without some of its pairs, or without any."""
    kept = () if refused is None else tuple(a for a in kernel.aliases if a not in refused)
    return kernel if kept == kernel.aliases else replace(kernel, aliases=kept)
