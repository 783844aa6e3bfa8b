"""The option `force_fallback`: operators that stay whole, so that eager mode can run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyfuse.base.log import warn_once
from polyfuse.base.text import join_words, nearest
from polyfuse.frontend.decompositions.decompose import BEFORE_AUTOGRAD, WHOLE, before_autograd
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import decomp


def is_named(name: str, forced: Sequence[str]) -> bool:
    """Whether an operator's name is among those given: with its overload, or without for all of them."""
    return bool(forced) and (name in forced or name.rpartition(".")[0] in forced)


def without_forced(
    table: Mapping[Any, Callable[..., Any]], forced: Sequence[str]
) -> Mapping[Any, Callable[..., Any]]:
    """Decompositions but for those of the named operators."""
    if not forced:
        return table
    return {op: function for op, function in table.items() if not is_named(ops.op_name(op), forced)}


def decompositions_before_autograd(
    forced: Sequence[str],
) -> tuple[tuple[str, ...], Callable[[Any], Callable[..., Any] | None]]:
    """Names of ATen operators that torch must not break up before autograd, and what each becomes."""
    named = tuple(n.removeprefix("aten.") for n in forced if n.startswith("aten."))

    def instead(op: Any) -> Callable[..., Any] | None:
        return None if is_named(ops.op_name(op), forced) else before_autograd(op)

    return (*BEFORE_AUTOGRAD, *named), instead


def note_unmatched(forced: Sequence[str]) -> None:
    """Warn, once, of names in `force_fallback` that cannot match an operator of a graph."""
    for name in forced:
        found = ops.maybe_op(name)
        if found is None:
            space = name.partition(".")[0] if "." in name else "aten"
            close = nearest(name if "." in name else f"aten.{name}", ops.names_in(space))
            fix = (
                f"did you mean {join_words(close, 'or')}?"
                if close
                else "correct it, or import what defines it"
            )
            warn_once("frontend", f"the option force_fallback names {name!r}, which is no operator; {fix}")
        elif decomp.is_composite(found) and name.removeprefix("aten.").partition(".")[0] not in WHOLE:
            warn_once(
                "frontend",
                f"the option force_fallback names {name!r}, which torch decomposes before Polyfuse sees it; "
                "name the operators that it becomes, which `polyfuse explain` lists",
            )
