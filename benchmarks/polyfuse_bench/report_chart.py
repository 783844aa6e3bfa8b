"""The README's chart, docs/speed.svg: bars of the speed-up over eager mode, Polyfuse beside Inductor."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polyfuse_bench.report_summary import Group, Speed

CHARTS = (
    ("Models", "forward", "CPU with two cores, f32, batch 1"),
    ("Models on NVIDIA H200", "forward", "NVIDIA H200, f32, batch 1"),
)
"""The groups that are drawn, side by side, and what stands above them."""

WIDTH, BAR, GAP, LABEL, TOP = 380, 11, 8, 76, 70
COLOURS = {"Polyfuse": "#1f5fa8", "Inductor": "#b4bac2"}
STYLE = "font-family: -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328"


def speed_chart(found: Sequence[Group]) -> str | None:
    """The drawing, or None where a chart's results are missing."""
    by_name = {(group.section, group.part): group for group in found}
    charts = [(by_name.get((section, part)), words) for section, part, words in CHARTS]
    if any(group is None for group, _ in charts):
        return None
    drawn = [(group, words) for group, words in charts if group is not None]
    rows = max(len(group.rows) for group, _ in drawn)
    height = TOP + rows * (2 * BAR + GAP) + 28
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(drawn)} {height}" role="img" '
        f'aria-label="Speed-up over eager mode by model" style="{STYLE}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="12" y="22" style="font-weight: 600">Inference, speed-up over eager mode</text>',
        *_legend(300),
    ]
    for number, (group, words) in enumerate(drawn):
        lines += _chart(group, words, number * WIDTH, height)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend(x: int) -> list[str]:
    lines = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        at = x + 90 * number
        lines.append(f'<rect x="{at}" y="12" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        lines.append(f'<text x="{at + 17}" y="22">{name}</text>')
    return lines


def _chart(group: Group, words: str, left: int, height: int) -> list[str]:
    """One group: two bars for each row, and a line where eager mode is."""
    longest = max(max(_bars(row).values()) for row in group.rows)
    unit = (WIDTH - LABEL - 60) / longest
    lines = [f'<text x="{left + 12}" y="50" style="fill: #57606a">{escape(words)}</text>']
    for number, row in enumerate(group.rows):
        y = TOP + number * (2 * BAR + GAP)
        lines.append(
            f'<text x="{left + LABEL - 8}" y="{y + BAR + 4}" text-anchor="end">{escape(row.name)}</text>'
        )
        for offset, (name, value) in enumerate(_bars(row).items()):
            top = y + offset * BAR
            lines.append(
                f'<rect x="{left + LABEL}" y="{top}" width="{value * unit:.1f}" height="{BAR - 1}" '
                f'fill="{COLOURS[name]}"/>'
            )
            lines.append(
                f'<text x="{left + LABEL + value * unit + 4:.1f}" y="{top + 9}" '
                f'style="font-size: 10px; fill: #57606a">{value:.2f}</text>'
            )
    x = left + LABEL + unit
    lines.append(
        f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 22}" stroke="#57606a" '
        'stroke-dasharray="2 3"/>'
    )
    lines.append(
        f'<text x="{x:.1f}" y="{height - 9}" text-anchor="middle" '
        'style="font-size: 10px; fill: #57606a">eager</text>'
    )
    return lines


def _bars(row: Speed) -> dict[str, float]:
    found = {"Polyfuse": row.over_eager or 0.0}
    if row.over_eager and row.over_inductor:
        found["Inductor"] = row.over_eager / row.over_inductor
    return found
