"""Functions of the package itself: what users call from Python besides `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.base.lazy import rare_collections
from polyfuse.torch_compat.captures.spared_imports import spare_networkx


@dataclass(frozen=True)
class Metrics:
    """What this process compiled, since it began or since `reset`.

    Of graphs, kernels, calls and bytes, the last 256 graphs count.

    Attributes:
        graphs: compiled, or read from the graph cache.
        programs: of these graphs: one for each, and those for further classes of dynamic sizes.
        operators: in the traced graphs.
        kernels: launches of generated kernels, in one call of each graph.
        library_calls: operators called from a library, in one call of each graph; `fallbacks` are among them.
        fallbacks: operators that run in eager mode, by reason.
        bytes_before: bytes that one call of each graph would read and write if every operator ran alone.
        bytes_after: bytes that it reads and writes.
        compile_seconds: wall time of the compiler's stages, builds in the background not included.
        cache_hits: graphs read from the graph cache.
        cache_misses: graphs looked up there, and compiled.
        cache_bypasses: graphs that bypassed it, by reason.
    """

    graphs: int
    programs: int
    operators: int
    kernels: int
    library_calls: int
    fallbacks: Mapping[str, int]
    bytes_before: int
    bytes_after: int
    compile_seconds: float
    cache_hits: int
    cache_misses: int
    cache_bypasses: Mapping[str, int]


def compile(
    fn: Callable[..., Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
) -> Callable[..., Any]:
    """Return `torch.compile(fn, backend="polyfuse", ...)`: a function, or for a module a module.

    Args:
        fn: a function or a `torch.nn.Module`.
        mode: one of docs/reference/settings.md, such as `"max-autotune"`.
        options: as listed there.
        dynamic: whether sizes are symbols; None: those that change.
        fullgraph: whether code that cannot be captured raises.

    Raises:
        InvalidOptionError: at the first call, for an option or a mode that does not exist.
    """
    given = None if options is None else dict(options)
    with rare_collections():  # the first one imports Dynamo, and all backends that torch has
        spare_networkx()
        compiled: Callable[..., Any] = torch.compile(
            fn, backend="polyfuse", mode=mode, options=given, dynamic=dynamic, fullgraph=fullgraph
        )
    return compiled


def metrics() -> Metrics:
    """Return counts of what this process compiled; reading them costs microseconds."""
    from polyfuse.cache.graphs import graph_counts
    from polyfuse.compiler.reports.report import last_reports

    reports, counts = last_reports(), graph_counts()
    fallbacks: dict[str, int] = {}
    for report in reports:
        for reason in (*(why for _, why in report.fallbacks), *filter(None, [report.eager])):
            fallbacks[reason] = fallbacks.get(reason, 0) + 1
    return Metrics(
        graphs=len(reports),
        programs=len(reports) + sum(len(report.sizes.made) for report in reports if report.sizes is not None),
        operators=sum(report.aten_ops for report in reports),
        kernels=sum(report.kernels for report in reports),
        library_calls=sum(report.extern_calls for report in reports),
        fallbacks=fallbacks,
        bytes_before=sum(report.bytes_before for report in reports),
        bytes_after=sum(report.bytes_after for report in reports),
        compile_seconds=sum(report.compile_seconds for report in reports),
        cache_hits=counts.hits,
        cache_misses=counts.misses,
        cache_bypasses=counts.bypasses,
    )


def reset() -> None:
    """Forget all that was compiled, counted and warned of in this process, with `torch.compiler.reset()`.

    Files of the cache folder stay: `polyfuse cache clear` removes them.
    """
    from polyfuse.base.log import reset_warned
    from polyfuse.cache.graphs import reset_graph_counts
    from polyfuse.compiler.reports.report import reset_reports
    from polyfuse.compiler.session import forget_sessions
    from polyfuse.runtime.workspace import forget_memory

    torch.compiler.reset()
    forget_memory()
    forget_sessions()
    reset_reports()
    reset_graph_counts()
    reset_warned()
