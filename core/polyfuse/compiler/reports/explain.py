"""What was compiled and why, as text: the words behind `polyfuse explain`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from polyfuse.base.text import counted, short_source, shorten
from polyfuse.compiler.reports.report import GraphReport, last_reports

_SHOWN = 24
"""Most items of one kind; a model can have thousands."""

_WIDEST = 1000
"""Characters of a choice: the ten best candidates, unless their configurations are long."""

_MORE = "`polyfuse explain --all` shows them"


def explain(reports: Iterable[GraphReport] | None = None, everything: bool = False) -> str:
    """What the compiler did with the graphs of `reports`, or with those compiled last in this process.

    Args:
        everything: cut no list.
    """
    found = list(last_reports() if reports is None else reports)
    if not found:
        return "nothing was compiled with Polyfuse\n"
    return "\n".join(explain_graph(report, everything) for report in found)


def explain_graph(report: GraphReport, everything: bool = False) -> str:
    """What the compiler did with one graph."""
    most = sys.maxsize if everything else _SHOWN
    head = f"graph {report.name} ({report.kind}): {report.aten_ops} operators"
    if report.eager:
        return f"{head}, run in eager mode: {report.eager}\n"
    if report.cached:
        head += ", compiled before and read,"
    lines = [
        f"{head} became {counted(report.kernels, 'launch', 'launches')} of"
        f" {counted(report.distinct_kernels, 'kernel')} and {counted(report.extern_calls, 'library call')}",
        f"  memory traffic: {_bytes(report.bytes_before)} operator by operator,"
        f" {_bytes(report.bytes_after)} compiled",
        "  seconds: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in report.stage_seconds),
    ]
    if report.recording is not None:
        lines.append(f"  device graph: {report.recording.text()}")
    if report.host is not None:
        lines.append(f"  host program: {report.host.text()}")
    if report.sizes is not None:
        lines.append(f"  sizes: {report.sizes.text()}")
        lines += [f"  device graph of other sizes: {item.text()}" for item in report.sizes.recordings]
    if report.rewrites:
        lines.append(
            "  rewrites: " + ", ".join(f"{name} {count}" for name, count in report.rewrites if count)
        )
    lines += _launches(report, most)
    lines += _section("library calls", _tally(report.calls), most)
    lines += _section("called because eager mode's kernel is faster", _tally(_preferred(report)), most)
    lines += _section("chosen by timing", _tally(_choices(report, everything)), most)
    lines += _section("not timed", _tally(_declined(report)), most)
    lines += _section("matmuls in chunks beside collectives", _chunked(report), most)
    lines += _section("overlapped collectives", _overlapped(report), most)
    lines += _section("not fused", _unfused(report), most)
    lines += _section("eager fallbacks", _tally(f"{op}: {why}" for op, why in report.fallbacks), most)
    lines += _section(
        "refusals of backends",
        _tally(
            f"{d.first} does not generate {d.second}: {d.reason}"
            for d in report.decisions
            if d.kind == "backend"
        ),
        most,
    )
    return "\n".join(lines) + "\n"


def _launches(report: GraphReport, most: int) -> list[str]:
    """The launches in order, with all that is known of each; what is cut is counted in launches."""
    if not report.launches:
        return []
    lines = ["  kernels:", *(f"    {line}" for line in _kernels(report, most))]
    left = len(report.launches) - most
    return [*lines, f"    and {counted(left, 'launch', 'launches')} more; {_MORE}"] if left > 0 else lines


def _kernels(report: GraphReport, most: int) -> Iterator[str]:
    for number, launch in enumerate(report.launches[:most], 1):
        ops = ", ".join(op.removeprefix("aten.").removesuffix(".default") for op in launch.ops)
        yield f"{number}. {launch.name} ({launch.backend}, {_bytes(launch.nbytes)}): {shorten(ops, 90)}"
        if launch.provider.reason:
            yield f"     {shorten(launch.provider.reason, 160)}"
        if launch.note and not launch.provider.reason:
            yield f"     {launch.note}"
        for source in launch.sources[:2]:
            yield f"     {short_source(source)}"


def _preferred(report: GraphReport) -> Iterator[str]:
    """Operators that kernels could have computed, and why they are called."""
    for decision in report.decisions:
        if decision.kind == "library":
            yield f"{decision.first}: {decision.reason}"


def _choices(report: GraphReport, everything: bool) -> Iterator[str]:
    """What autotuning chose for each problem, with the times of the others, best first."""
    for decision in report.decisions:
        if decision.kind in ("choice", "tune"):
            what = f"kernel {decision.first}: " if decision.kind == "tune" else ""
            text = f"{decision.second or 'first guess'} for {what}{decision.reason}"
            yield text if everything else shorten(text, _WIDEST)


def _declined(report: GraphReport) -> Iterator[str]:
    """Which candidates were not timed, and why."""
    for decision in report.decisions:
        if decision.kind == "declined":
            yield f"{decision.second or 'generated kernels'}: {decision.reason}"


def _chunked(report: GraphReport) -> Iterator[str]:
    """Which matmuls are cut, and what that changes by estimates."""
    for decision in report.decisions:
        if decision.kind == "chunk":
            yield f"{decision.second} beside {decision.first}: {decision.reason}"


def _overlapped(report: GraphReport) -> Iterator[str]:
    """Which collectives overlap computation, and for how long by estimates."""
    for decision in report.decisions:
        if decision.kind == "overlap":
            pair = f"{decision.first} to {decision.second}: " if decision.first else ""
            yield f"{pair}{decision.reason}"


def _unfused(report: GraphReport) -> Iterator[str]:
    """Pairs of kernels that were not fused, each with the reason that was given last."""
    owner = {node: i for i, launch in enumerate(report.launches, 1) for node in launch.nodes}
    found: dict[tuple[int, int], str] = {}
    for decision in report.decisions:
        if decision.kind == "refuse":
            ends = [owner.get(names.split("+")[0], 0) for names in (decision.first, decision.second)]
            if all(ends) and ends[0] != ends[1]:
                found[min(ends), max(ends)] = decision.reason
    for (first, second), reason in sorted(found.items()):
        yield f"{first} and {second}: {reason}"


def _section(title: str, items: Iterable[str], most: int) -> list[str]:
    found = list(items)
    if not found:
        return []
    more = [f"    and {len(found) - most} more; {_MORE}"] if len(found) > most else []
    return [f"  {title}:", *(f"    {item}" for item in found[:most]), *more]


def _tally(items: Iterable[str]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    for item, count in counts.items():
        yield f"{count} x {item}" if count > 1 else item


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"
