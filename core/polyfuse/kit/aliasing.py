"""Arguments that may be one memory (`Kernel.aliases`).

A generator that reads, computes and writes in the order of the statements needs nothing of this. One that
reads an element more than once, moves a load, or reads it from several threads asks `KernelFacts` which
memory the kernel may change, and refuses (`Source.refused_aliases`) the pairs for which its text would be
wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from polyfuse.ir.kernel import Alias, Kernel


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


def without_aliases(kernel: Kernel, refused: Collection[Alias] | None = None) -> Kernel:
    """The kernel without some of its pairs, or without any."""
    accepted = () if refused is None else tuple(a for a in kernel.aliases if a not in refused)
    return kernel if accepted == kernel.aliases else replace(kernel, aliases=accepted)
