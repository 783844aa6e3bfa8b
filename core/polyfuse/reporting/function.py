"""`polyfuse.report(fn)(*args)` and `polyfuse.explain(fn)(*args)`: compile a function, call it, and tell what
became of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyfuse.compiler.compile import compile_fx_graph
from polyfuse.compiler.reports.explain import explain as explain_reports
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.reporting.collect import Collector
from polyfuse.reporting.compare import compare
from polyfuse.reporting.describe import compile_times, describe
from polyfuse.reporting.overview import overview, overview_text
from polyfuse.reporting.page import read_report, write_json, write_page
from polyfuse.torch_compat.tracing.frames import without_compile
from polyfuse.torch_compat.tracing.pytree import flatten

_CALLS = 3


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        path: of the HTML file.
        data: what it shows, as docs/report.md describes it.
        result: what the function returned.
    """

    path: Path
    data: Mapping[str, Any] = field(repr=False)
    result: Any = field(repr=False)


def report(
    fn: Callable[..., Any],
    file: str | Path = "polyfuse-report.html",
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    json: str | Path | None = None,
    compare_with: str | Path | None = None,
) -> Callable[..., Report]:
    """Return a function that compiles `fn`, calls it, and writes a report of it.

    The function is compiled twice: with an empty cache folder, and then with what that left there, for the
    times of a cold and of a warm compile. It is called several times. Where a result needs gradients, these
    are computed for tensors among the arguments and for parameters of a module, and not stored anywhere.

    Args:
        fn: a function or module, compiled or not.
        file: what is written.
        mode, options, dynamic: as for `torch.compile(fn, backend="polyfuse", ...)`.
        json: where the same data goes as JSON; None: nowhere.
        compare_with: an earlier report, HTML or JSON, whose differences to this one are shown.

    Raises:
        PolyfuseError: a file cannot be written, or is no report.
    """
    inner = without_compile(fn)
    earlier = None if compare_with is None else read_report(Path(compare_with))

    def run(*args: Any, **kwargs: Any) -> Report:
        with tempfile.TemporaryDirectory(prefix="polyfuse-report-") as folder:
            given = {"cache_dir": folder, **(options or {})}
            cold, warm = Collector(), Collector(measure=False)
            with cold.watching():
                result = _called(inner, args, kwargs, given, mode, dynamic, _CALLS)
            with warm.watching():
                _called(inner, args, kwargs, given, mode, dynamic, 1)
            data = describe(cold, getattr(inner, "__qualname__", type(inner).__qualname__))
        data["times"]["warm"] = compile_times(warm)
        if earlier is not None:
            data["compare"] = compare(earlier, data)
        write_page(Path(file), data)
        if json is not None:
            write_json(Path(json), data)
        return Report(Path(file).resolve(), data, result)

    return run


def _called(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
    mode: str | None,
    dynamic: bool | None,
    calls: int,
) -> Any:
    """What `fn` returns when it is newly compiled and called some times."""

    def compiler(gm: Any, inputs: Any) -> Callable[..., Any]:
        # Dynamo compiles anew for a backend that it has not seen
        return compile_fx_graph(gm, inputs, mode, options)

    compiled = torch.compile(fn, backend=compiler, dynamic=dynamic)
    result = None
    for _ in range(calls):
        result = compiled(*args, **kwargs)
        _differentiate(fn, args, kwargs, result)
    return result


def _differentiate(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    leaves = [x for x in flatten((args, kwargs))[0] if _needs_gradient(x)]
    if isinstance(fn, torch.nn.Module):
        leaves += [p for p in fn.parameters() if p.requires_grad]
    ends = [x for x in flatten(result)[0] if _needs_gradient(x)]
    if ends and leaves:
        torch.autograd.grad(ends, leaves, [torch.ones_like(x) for x in ends], allow_unused=True)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@dataclass(frozen=True)
class Explanation:
    """What became of a function; `print` shows what matters first, then each graph.

    Attributes:
        data: what matters first, as `polyfuse explain --json` has it under `overview`.
        graphs: the report of each graph.
        result: what the function returned.
    """

    data: Mapping[str, Any] = field(repr=False)
    graphs: tuple[GraphReport, ...] = field(repr=False)
    result: Any = field(repr=False)

    def __str__(self) -> str:
        return f"{overview_text(self.data)}\n{explain_reports(self.graphs)}"


def explain(
    fn: Callable[..., Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
) -> Callable[..., Explanation]:
    """Return a function that compiles `fn`, calls it, and tells what became of it.

    The function is compiled anew, but kernels that were built before are not built again. Where a result
    needs gradients, these are computed too, and not stored anywhere.

    Args:
        fn: a function or module, compiled or not.
        mode, options, dynamic: as for `torch.compile(fn, backend="polyfuse", ...)`.

    Raises:
        PolyfuseError: as compiling and calling it does.
        TypeError: `fn` cannot be called.
    """
    if not callable(fn):
        raise TypeError(f"explain got {fn!r}; give it a function or module, and call what it returns")
    inner = without_compile(fn)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        collector = Collector()
        given = {"graph_cache": False, **(options or {})}
        with collector.watching():
            result = _called(inner, args, kwargs, given, mode, dynamic, 1)
        return Explanation(overview(collector), tuple(item.report for item in collector.graphs), result)

    return run
