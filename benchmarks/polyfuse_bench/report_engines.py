"""Tables and the chart of the campaign `engines`: docs/performance.md, docs/engines.svg, the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.text import Text

from polyfuse_bench.backends import EAGER, FREEZING, INDUCTOR, ONNXRUNTIME, OPENVINO, POLYFUSE
from polyfuse_bench.packaged import FORMS
from polyfuse_bench.report_chart import Bars, opening
from polyfuse_bench.report_summary import SLOWER
from polyfuse_bench.report_text import (
    by_backend,
    error_text,
    facts,
    in_order,
    markdown,
    sizes,
    time_text,
    title,
)
from polyfuse_bench.results import RESULTS, read_results
from polyfuse_bench.timing import geometric_mean

Row = dict[str, Any]

FROZEN = f"{POLYFUSE}:{FREEZING}"

_OVER_DEFAULT = {f"{POLYFUSE}:{form}": f"time of {form} over default" for form in FORMS}

DRAWN = {
    FROZEN: ("Polyfuse (freezing)", "#1f5fa8"),
    POLYFUSE: ("Polyfuse", "#7aa7dc"),
    INDUCTOR: ("Inductor", "#b4bac2"),
    OPENVINO: ("OpenVINO", "#8e7cc3"),
    ONNXRUNTIME: ("ONNX Runtime", "#d9a441"),
}
"""Who is drawn, by what name and colour, from top to bottom."""


def engines_results(results: Path = RESULTS) -> list[dict[str, Any]]:
    """The result files of the campaign: the plain one first, then those with a label."""
    others = sorted(path.stem for path in results.glob("engines-*.json"))
    return [content for name in ("engines", *others) if (content := read_results(name, results)) is not None]


def _shown(results: Path) -> dict[str, Any] | None:
    """What the README and the chart show: the result file with the most engines, of those the one with the
    most networks that all of them have run, of equals the newest.
    """
    return max(
        engines_results(results),
        key=lambda c: (_engines(c), _complete(c), c.get("taken", "")),
        default=None,
    )


def _engines(content: dict[str, Any]) -> int:
    timed = {timing["name"] for row in content["rows"] for timing in row["timings"]}
    return len(timed & DRAWN.keys())


def _complete(content: dict[str, Any]) -> int:
    timed = [{timing["name"] for timing in row["timings"]} & DRAWN.keys() for row in content["rows"]]
    return sum(len(names) == _engines(content) for names in timed)


def _untimed(row: dict[str, Any], name: str) -> str:
    return "failed" if name in row["failures"] else ""


def engines_section(content: dict[str, Any]) -> list[str]:
    """One result file as a section of the page."""
    rows = content["rows"]
    names = by_backend(timing["name"] for row in rows for timing in row["timings"])
    table = []
    compared = ["over Inductor"] if INDUCTOR in names else []
    compared += ["frozen over OpenVINO"] if OPENVINO in names else []
    compared += ["best over the best peer"] if any(not n.startswith((POLYFUSE, EAGER)) for n in names) else []
    compared += [_OVER_DEFAULT[name] for name in names if name in _OVER_DEFAULT]
    ratios: dict[str, list[float]] = {name: [] for name in compared}
    for row in rows:
        medians = _medians(row)
        cells = [time_text(medians[name]) if name in medians else _untimed(row, name) for name in names]
        pairs = {
            "over Inductor": (medians.get(INDUCTOR), medians.get(POLYFUSE)),
            "frozen over OpenVINO": (medians.get(OPENVINO), medians.get(FROZEN)),
            "best over the best peer": (best_peer(medians), best_own(medians)),
            **{words: (medians.get(name), medians.get(POLYFUSE)) for name, words in _OVER_DEFAULT.items()},
        }
        cells += [_ratio(ratios[name], *pairs[name]) for name in compared]
        table.append([row["name"], *cells, error_text(row["errors"].get(POLYFUSE))])
    means = [f"**{mean:.2f}×**" if (mean := geometric_mean(column)) else "" for column in ratios.values()]
    table.append(["**geometric mean**", *([""] * len(names)), *means, ""])
    versions = ", ".join(f"{title(name)} {version}" for name, version in content.get("engines", {}).items())
    return [
        f"## {_title(content)}{_threads(content)}{sizes(content)}",
        "",
        "Inference of whole networks by what a user could pick on a CPU, with the same weights and number of",
        "threads. OpenVINO and ONNX Runtime treat weights as constants, as `freezing` does. *best over the",
        "best peer*: the faster form of Polyfuse beside the fastest of all others.",
        "",
        *facts(content),
        *([f"Peers: {versions}.", ""] if versions else []),
        *markdown(["network", *map(title, names), *compared, "error"], table),
        "",
        *_failures(rows),
    ]


def engines_readme(results: Path) -> str | None:
    """What the README shows of the newest results of all networks: the chart, its machine and the means."""
    content = _shown(results)
    if content is None:
        return None
    machine = content["machine"]
    means = []
    for name, (words, _) in DRAWN.items():
        ratios = [speed for row in content["rows"] if (speed := _speeds(row).get(name)) is not None]
        if ratios:
            means.append(f"{words} {geometric_mean(ratios):.2f}×")
    drawn = (words for name, (words, _) in DRAWN.items() if any(name in _speeds(r) for r in content["rows"]))
    batch = next((row["batch"] for row in content["rows"] if row.get("batch")), None)
    of = f", batch {batch}" if batch else ""
    lines = [
        f"![Speed-up over eager mode: {', '.join(drawn)}](docs/engines.svg)",
        "",
        f"Geometric means over eager mode, on {machine['cpu']} with {machine['threads']} threads{of}: "
        f"{', '.join(means)}.",
    ]
    return "\n".join(lines) + "\n"


def engines_slower(results: Path) -> list[str]:
    """Networks on which the fastest peer takes less time than either form of Polyfuse."""
    table = []
    for content in engines_results(results):
        for row in content["rows"]:
            medians = _medians(row)
            peer, own = best_peer(medians), best_own(medians)
            if peer and own and peer / own < SLOWER:
                (name,) = [name for name, seconds in medians.items() if seconds == peer][:1]
                where = f"{row['name']}, {content['kind']}"
                table.append((peer / own, [where, title(name), time_text(own), f"{peer / own:.2f}×"]))
    if not table:
        return []
    table.sort(key=lambda item: item[0])
    return [
        "Networks on which another engine is faster than Polyfuse, frozen or not:",
        "",
        *markdown(["row", "fastest", "Polyfuse", "over the fastest"], [cells for _, cells in table]),
        "",
    ]


def best_peer(medians: Mapping[str, float]) -> float | None:
    """Seconds of the fastest that is not Polyfuse and not eager mode."""
    return min((s for name, s in medians.items() if not name.startswith((POLYFUSE, EAGER))), default=None)


def best_own(medians: Mapping[str, float]) -> float | None:
    """Seconds of the faster form of a compiled model; packages are not among these."""
    forms = (s for name, s in medians.items() if name.startswith(POLYFUSE) and name not in _OVER_DEFAULT)
    return min(forms, default=None)


def _medians(row: Row) -> dict[str, float]:
    return {timing["name"]: timing["median"] for timing in row["timings"]}


def _speeds(row: Row) -> dict[str, float]:
    """How much faster than eager mode each engine runs a network."""
    medians = _medians(row)
    eager = medians.get(EAGER)
    return {name: eager / medians[name] for name in DRAWN if eager and name in medians}


def _ratio(column: list[float], other: float | None, mine: float | None) -> str:
    if other is None or mine is None:
        return ""
    column.append(other / mine)
    return f"{other / mine:.2f}×"


def _title(content: dict[str, Any]) -> str:
    """What a section begins with: files of one sort of networks have it in their label, and so have those of
    some networks of another file, measured again.
    """
    sorts = {
        "-packages": "Engines, packages",
        "-transformers": "Engines, transformers",
        "-again": "Engines, measured again",
    }
    return next((words for label, words in sorts.items() if label in content["kind"]), "Engines")


def _threads(content: dict[str, Any]) -> str:
    return f" with {content['machine']['threads']} threads on {content['machine']['cpu']}"


def _failures(rows: Sequence[Row]) -> list[str]:
    failed = [
        f"* {row['name']}, {title(name)}: {Text.from_ansi(reason).plain[:160]}"
        for row in rows
        for name, reason in row["failures"].items()
    ]
    return ["What did not run:", "", *failed, ""] if failed else []


# ---- the chart -----------------------------------------------------------------------------------


def engines_chart(results: Path = RESULTS) -> str | None:
    """Bars of the speed-up over eager mode, a group for each network; None where nothing was measured."""
    content = _shown(results)
    rows = [row for row in content["rows"] if _speeds(row)] if content is not None else []
    if content is None or not rows:
        return None
    names = in_order(name for name in DRAWN for row in rows if name in _speeds(row))
    colours = {name: DRAWN[name][1] for name in names}
    bars = Bars(colours, width=760, label=104, bar=10, gap=10, top=76, over=8, under=20)
    machine = content["machine"]
    height = bars.top + len(rows) * bars.step + 24
    words = f"{machine['cpu']}, {machine['threads']} threads, f32, batch {rows[0].get('batch', '')}"
    lines = [
        *opening(bars.width, height, "Speed-up over eager mode by network and engine"),
        f'<text x="12" y="22"><tspan style="font-weight: 600">Inference, speed-up over eager mode</tspan>'
        f'<tspan dx="10" style="fill: #57606a">{escape(words)}</tspan></text>',
        *bars.legend(12, 38, 146, [DRAWN[name][0] for name in names]),
        *bars.drawn([(row["name"], _speeds(row)) for row in rows], 0, height),
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"
