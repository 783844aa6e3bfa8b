"""What `polyfuse explain --world` found, as an HTML page: a table of the worlds, and the timeline of a step
in each of them. The page is one file without scripts, which loads nothing from anywhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from polyfuse.reporting.page import document, write_document

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; --text: #1f2328; --page: #fff; --line: #d0d7de; --compute: #4878a8;
  --hidden: #7f9f5f; --exposed: #c4502e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #30363d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { border-bottom: 1px solid var(--line); padding: .3rem .8rem; }
td, th { text-align: right; } td:last-child, th:last-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--text); }
.compute { fill: var(--compute); } .hidden { fill: var(--hidden); } .exposed { fill: var(--exposed); }
.axis { stroke: var(--line); } .key { display: inline-block; width: 1em; height: 1em; vertical-align: -.1em; }
.key.compute { background: var(--compute); } .key.hidden { background: var(--hidden); }
.key.exposed { background: var(--exposed); }
"""

_LEFT, _WIDTH, _HIGH, _GAP = 90, 1100, 22, 8
"""Of a timeline, in units of the drawing: where it begins, its width, heights of a row and of a gap."""
_THINNEST: Final = 0.75


def worlds_page(worlds: Sequence[Mapping[str, Any]], title: str) -> str:
    """The page.

    Args:
        worlds: of each what `SimulatedRank.result` returns: seconds, bytes, and the collectives of a step.
        title: the program and its arguments.
    """
    name = f"{title} – one rank of larger worlds"
    costs = ", ".join(sorted({str(world["costs"]) for world in worlds}))
    lines = [
        f"<h1>{html.escape(name)}</h1>",
        "<p>What this rank computes was run and timed; its communication was played by costs of collectives"
        f" ({html.escape(costs)}). Ranks are taken to be equally fast.</p>",
        *_table(worlds),
        '<p><span class="key compute"></span> computing <span class="key hidden"></span> communication beside'
        ' computing <span class="key exposed"></span> exposed communication: the rank waits</p>',
    ]
    for world in worlds:
        lines += [f"<h2>{world['ranks']} ranks</h2>", *_timeline(world)]
    return document(name, _POLICY, _STYLE, lines)


def write_worlds_page(path: Path, worlds: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write the page.

    Raises:
        PolyfuseError: the file cannot be written.
    """
    write_document(path, worlds_page(worlds, title))


def hidden_seconds(world: Mapping[str, Any]) -> float:
    """Communication of a step beside which something computes."""
    return max(0.0, float(world["communication"] - world["exposed"]))


def collectives_text(world: Mapping[str, Any]) -> str:
    """Collectives of a step by kind."""
    found = world["collectives"].items()
    return (
        ", ".join(f"{count} {kind} ({nbytes / 2**20:.1f} MiB)" for kind, (count, nbytes) in found) or "none"
    )


def _table(worlds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    titles = ("ranks", "step", "computing", "exposed", "hidden", "peak memory", "collectives of a step")
    yield "<table>"
    yield "<tr>" + "".join(f'<th scope="col">{title}</th>' for title in titles) + "</tr>"
    for world in worlds:
        times = [world["seconds"], world["computing"], world["exposed"], hidden_seconds(world)]
        cells = [
            str(world["ranks"]),
            *(_milliseconds(seconds) for seconds in times),
            f"{world['peak_bytes'] / 2**20:.0f} MiB",
            html.escape(collectives_text(world)),
        ]
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _timeline(world: Mapping[str, Any]) -> Iterator[str]:
    """Two rows: what the rank does, and what the network does."""
    if not world["steps"]:
        yield "<p>No step repeats: the timeline is of all after the last compile. Run more steps.</p>"
    flights = world["flights"]
    end = max([world["seconds"], *(flight["done"] for flight in flights)], default=0.0)
    if not end:
        yield "<p>Nothing was played.</p>"
        return
    scale = (_WIDTH - _LEFT) / end
    waits = [(f["done"] - f["exposed"], f["done"]) for f in flights if f["exposed"] > 0]
    high = 2 * (_HIGH + _GAP)
    label = f"timeline of a step in a world of {world['ranks']} ranks"
    yield f'<svg viewBox="0 0 {_WIDTH} {high + 20}" role="img" aria-label="{label}">'
    yield _text(0, 15, "rank") + _text(0, 15 + _HIGH + _GAP, "network")
    begun = 0.0
    for wait, done in [*waits, (world["seconds"], world["seconds"])]:
        if wait > begun:
            yield _box("compute", begun, wait, 0, scale, f"computing, {_milliseconds(wait - begun)}")
        if done > wait:
            yield _box("exposed", wait, done, 0, scale, f"waiting, {_milliseconds(done - wait)}")
        begun = max(begun, done)
    free = 0.0
    for flight in flights:
        # one that waits for the network begins when those before it are done
        first = min(max(flight["begun"], free), flight["done"])
        what = (
            f"{flight['kind']} of {flight['nbytes'] / 2**20:.2f} MiB among {flight['ranks']} ranks,"
            f" {_milliseconds(flight['done'] - first)}, exposed {_milliseconds(flight['exposed'])}"
        )
        open_from = max(first, flight["done"] - flight["exposed"])
        if open_from > first:
            yield _box("hidden", first, open_from, 1, scale, what)
        if flight["done"] > open_from:
            yield _box("exposed", open_from, flight["done"], 1, scale, what)
        free = flight["done"]
    yield f'<line class="axis" x1="{_LEFT}" y1="{high}" x2="{_WIDTH}" y2="{high}"/>'
    for part in range(5):
        x = _LEFT + (_WIDTH - _LEFT) * part / 4
        anchor = "end" if part == 4 else "middle" if part else "start"
        yield _text(x, high + 15, _milliseconds(end * part / 4), anchor)
    yield "</svg>"


def _box(kind: str, begun: float, done: float, row: int, scale: float, what: str) -> str:
    x, width = _LEFT + begun * scale, max(_THINNEST, (done - begun) * scale)
    geometry = f'x="{x:.2f}" y="{row * (_HIGH + _GAP)}" width="{width:.2f}" height="{_HIGH}"'
    return f'<rect class="{kind}" {geometry}><title>{html.escape(what)}</title></rect>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
