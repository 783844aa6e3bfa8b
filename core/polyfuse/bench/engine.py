"""Who runs a subject: eager mode, a compiler that torch knows by name, or a backend of Polyfuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.settings import MODES
from polyfuse.base.text import join_words
from polyfuse.plugin.session.names import unknown_backend

EAGER = "eager"
TORCH = "torch.compile"
"""The compiler that torch uses where none is named."""


@dataclass(frozen=True)
class Engine:
    """One way to run a function.

    Attributes:
        name: as the user wrote it.
        compiler: a name of a compiler that torch knows, or `TORCH`; empty: eager mode.
        backends: of Polyfuse, in order; empty: as installed.
        mode: of torch.compile; empty: the default one.
    """

    name: str
    compiler: str = ""
    backends: tuple[str, ...] = ()
    mode: str = ""

    def compiled(self, function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
        """The function, to be compiled at its first call."""
        if not self.compiler:
            return function
        mode = self.mode or None
        if self.compiler == TORCH:
            return torch.compile(function, mode=mode, dynamic=dynamic)
        if self.compiler != "polyfuse":
            return torch.compile(function, backend=self.compiler, mode=mode, dynamic=dynamic)

        from polyfuse.backend import polyfuse

        options = {"backends": list(self.backends)} if self.backends else None

        def compile_graph(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            return polyfuse(gm, example_inputs, options=options, mode=mode)

        return torch.compile(function, backend=compile_graph, dynamic=dynamic)


def parse_engines(text: str, backends: Sequence[str]) -> tuple[Engine, ...]:
    """Engines as the user writes them: `eager,polyfuse,NAME,NAME@max-autotune`.

    Args:
        backends: names of the installed backends of Polyfuse.

    Raises:
        BackendUnavailableError: nothing is called so.
        InvalidOptionError: a mode is unknown.
    """
    return tuple(_parse(word.strip(), backends) for word in text.split(",") if word.strip())


def _parse(word: str, backends: Sequence[str]) -> Engine:
    name, _, mode = word.partition("@")
    if mode and mode not in MODES:
        raise InvalidOptionError(
            f"engine {word!r} has an unknown mode", f"use {join_words(list(MODES), 'or')}"
        )
    if name == EAGER:
        return Engine(word)
    if name == TORCH:
        return Engine(word, TORCH, (), mode)
    if name == "polyfuse":
        return Engine(word, "polyfuse", (), mode)
    if name in backends:
        return Engine(word, "polyfuse", (name,), mode)
    known = torch.compiler.list_backends(exclude_tags=())
    if name in known:
        return Engine(word, name, (), mode)
    every = list(dict.fromkeys((EAGER, TORCH, "polyfuse", *backends, *known)))
    raise unknown_backend(name, every)
