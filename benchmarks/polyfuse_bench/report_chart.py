"""The charts docs/speed.svg, models over eager mode, and docs/kernels.svg, fused functions over Inductor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from polyfuse_bench.report_summary import SLOWER, Group, Speed, known

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


# ---- fused functions -----------------------------------------------------------------------------

KERNEL_CHARTS = (
    ("Kernels", "large", "CPU with two cores, large tensors"),
    ("Kernels, huge on NVIDIA H200", "huge", "NVIDIA H200, huge tensors"),
)
"""As `CHARTS`: one dot for each fused function."""

DOT_WIDTH, DOT_HEIGHT, DOT_TOP = 380, 250, 70


def kernels_chart(found: Sequence[Group]) -> str | None:
    """Dots of the speed-up over Inductor, by size, on a logarithmic axis; None where nothing was measured."""
    by_name = {(group.section, group.part): group for group in found}
    charts = [
        (sorted(known(group.rows, "over_inductor")), words)
        for section, part, words in KERNEL_CHARTS
        if (group := by_name.get((section, part))) is not None
    ]
    charts = [(ratios, words) for ratios, words in charts if ratios]
    if not charts:
        return None
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {DOT_WIDTH * len(charts)} {DOT_HEIGHT}" '
        f'role="img" aria-label="Speed-up over Inductor of each fused function" style="{STYLE}">',
        '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
        '<text x="12" y="22" style="font-weight: 600">Fused functions, speed-up over Inductor, sorted</text>',
    ]
    for number, (ratios, words) in enumerate(charts):
        lines += _dots(ratios, words, number * DOT_WIDTH)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _dots(ratios: Sequence[float], words: str, left: int) -> list[str]:
    """One chart: a dot for each ratio, and lines where it is 0.5, 1, 2 and so on."""
    low = min(-1, math.floor(math.log2(ratios[0])))
    high = max(1, math.ceil(math.log2(ratios[-1])))
    bottom = DOT_HEIGHT - 16

    def height(ratio: float) -> float:
        return bottom - (math.log2(ratio) - low) / (high - low) * (bottom - DOT_TOP)

    lines = [f'<text x="{left + 12}" y="50" style="fill: #57606a">{escape(words)}</text>']
    for power in range(low, high + 1):
        y = height(2.0**power)
        dashes = "" if power == 0 else ' stroke-dasharray="2 3"'
        lines.append(
            f'<line x1="{left + 44}" y1="{y:.1f}" x2="{left + DOT_WIDTH - 16}" y2="{y:.1f}" '
            f'stroke="#b4bac2"{dashes}/>'
        )
        lines.append(
            f'<text x="{left + 38}" y="{y + 4:.1f}" text-anchor="end" '
            f'style="font-size: 10px; fill: #57606a">{2.0**power:g}×</text>'
        )
    step = (DOT_WIDTH - 72) / max(len(ratios) - 1, 1)
    for number, ratio in enumerate(ratios):
        colour = COLOURS["Polyfuse"] if ratio >= SLOWER else "#c26b5a"
        lines.append(
            f'<circle cx="{left + 50 + number * step:.1f}" cy="{height(ratio):.1f}" r="3" fill="{colour}"/>'
        )
    return lines
