"""The function behind `torch.compile(model, backend="polyfuse")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from polyfuse.runtime.ranks.agreement import begin_compiling, end_compiling
from polyfuse.torch_compat.captures.ending import left_at_the_end
from polyfuse.torch_compat.captures.frames import Frame, around_frames, collections_deferred
from polyfuse.torch_compat.captures.spared_imports import spare_networkx
from polyfuse.torch_compat.tracing.dynamo import allow_registering_twice, watch_compiles


def polyfuse(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one captured graph. Registered with Dynamo under the entry-point group
    `torch_dynamo_backends`.
    """
    from polyfuse.compiler.compile import compile_fx_graph

    watch_compiles(begin_compiling, end_compiling)  # `torch.compiler.reset()` forgets who watches
    return compile_fx_graph(gm, example_inputs, mode, options)


def _reset() -> None:
    """Forget options, plugins and warnings given; `torch.compiler.reset()` calls it."""
    from polyfuse.base.log import reset_warned
    from polyfuse.compiler.session import forget_sessions

    forget_sessions()
    reset_warned()


# Dynamo looks for this on the functions that it used as backends.
polyfuse.reset = _reset  # type: ignore[attr-defined]


def _around(frame: Frame, trace: Callable[[], Any]) -> Any:
    with collections_deferred():
        from polyfuse.compiler.captures.lookup import around
    with left_at_the_end():
        return around(frame, trace)


# AOTAutograd is imported with the first graph.
spare_networkx()

# Frames may be found that an earlier process traced.
around_frames(polyfuse, _around)

# Other processes of a distributed program wait while this one traces.
watch_compiles(begin_compiling, end_compiling)

# Threads that look it up for the first time together.
allow_registering_twice("polyfuse", polyfuse)
