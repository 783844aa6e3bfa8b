"""Cases with arguments that really are one memory: every permitted pair, in every configuration.

What a kernel computes must not depend on whether an output lies where an input lay, if its generator accepted
that (`Kernel.aliases`, `Source.refused_aliases`). The truth is what the interpreter computes with them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.aliasing import permitted_aliases
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config, Source
from polyfuse.testing.cases.case import Case


@dataclass(frozen=True)
class Aliased:
    """A kernel to be launched with arguments that are one memory.

    Attributes:
        source: as it was generated.
        pairs: positions of an output and of the input whose memory it gets.
        about: which pairs and which configuration, in words.
    """

    source: Source
    pairs: tuple[tuple[int, int], ...]
    about: str


def aliased_sources(backend: Backend, case: Case, most: int | None) -> Iterator[Aliased]:
    """The kernel of a case that permits all it can, in its first configurations and their neighbours: `most`
    of each, or all. One whose generator refuses every pair is left out.
    """
    kernel = replace(case.kernel, aliases=permitted_aliases(case.kernel))
    if not kernel.aliases:
        return
    position = {arg.name: k for k, arg in enumerate(kernel.args)}
    seen: set[tuple[str, tuple[tuple[int, int], ...]]] = set()
    for config in _configs(backend, kernel, most):
        try:
            source = backend.emit(kernel, config)
        except UnsupportedError:
            continue
        accepted = [a for a in kernel.aliases if a not in source.refused_aliases]
        pairs = tuple((position[a.output], position[a.input]) for a in accepted)
        if pairs and (source.key, pairs) not in seen:
            seen.add((source.key, pairs))
            words = ", ".join(f"{a.output} over {a.input}" for a in accepted)
            yield Aliased(source, pairs, f"with {words}" + (f" and {config}" if config is not None else ""))


def _configs(backend: Backend, kernel: Kernel, most: int | None) -> Iterator[Config | None]:
    yield None
    if most == 0:
        return
    try:
        offered: Sequence[Config] = backend.configs(kernel)
    except UnsupportedError:
        return
    chosen = list(islice(offered, most))
    yield from chosen
    if chosen:
        yield from islice(backend.neighbours(kernel, chosen[0]), most)
