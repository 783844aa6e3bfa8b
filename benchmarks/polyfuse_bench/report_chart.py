"""The charts docs/speed.svg, models over eager mode, and docs/kernels.svg, fused functions over Inductor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from polyfuse_bench.report_summary import SLOWER, Group, Speed, known

CHARTS = (
    ("Models", "forward", "CPU with two cores, f32, batch 1"),
    ("Models on NVIDIA H200", "forward", "NVIDIA H200, f32, batch 1"),
)
"""The groups that are drawn, side by side, and what stands above them."""

COLOURS = {"Polyfuse": "#1f5fa8", "Inductor": "#b4bac2"}
STYLE = "font-family: -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328"


def opening(width: int, height: int, label: str) -> list[str]:
    """The first lines of a drawing: its size, what it shows for those who do not see it, and a background."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}" style="{STYLE}">',
        '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
    ]


@dataclass(frozen=True)
class Bars:
    """A bar for each engine in a group for each row, and a line where eager mode is.

    Attributes:
        colours: of the engines by name, from top to bottom.
        width, label: of the chart, and of the names of rows in it.
        bar, gap: heights of a bar, and of the space between groups.
        top: where the first group begins.
        over, under: how far the line reaches above that, and ends above the chart's lower edge.
    """

    colours: Mapping[str, str]
    width: int
    label: int
    bar: int
    gap: int
    top: int
    over: int
    under: int

    @property
    def step(self) -> int:
        """The height of a group and of the space behind it."""
        return len(self.colours) * self.bar + self.gap

    def legend(self, x: int, y: int, apart: int, names: Sequence[str]) -> list[str]:
        """The names of the engines with their colours, side by side."""
        lines = []
        for at, name, colour in zip(itertools.count(x, apart), names, self.colours.values(), strict=False):
            lines += [
                f'<rect x="{at}" y="{y}" width="{self.bar}" height="{self.bar}" fill="{colour}"/>',
                f'<text x="{at + self.bar + 6}" y="{y + self.bar - 1}">{escape(name)}</text>',
            ]
        return lines

    def drawn(self, rows: Sequence[tuple[str, Mapping[str, float]]], left: int, height: int) -> list[str]:
        """The groups of a chart of that height, each a name and a value for some engines."""
        first, half = left + self.label, len(self.colours) * self.bar // 2
        unit = (self.width - self.label - 60) / max(max(values.values()) for _, values in rows)
        lines = []
        for y, (name, values) in zip(itertools.count(self.top, self.step), rows, strict=False):
            lines.append(f'<text x="{first - 8}" y="{y + half + 4}" text-anchor="end">{escape(name)}</text>')
            for at, (engine, colour) in zip(itertools.count(y, self.bar), self.colours.items(), strict=False):
                length = values.get(engine, 0.0) * unit
                if length:
                    lines += [
                        f'<rect x="{first}" y="{at}" width="{length:.1f}" height="{self.bar - 1}" '
                        f'fill="{colour}"/>',
                        f'<text x="{first + length + 4:.1f}" y="{at + self.bar - 2}" '
                        f'style="font-size: {self.bar - 1}px; fill: #57606a">{values[engine]:.2f}</text>',
                    ]
        x = f"{first + unit:.1f}"
        return [
            *lines,
            f'<line x1="{x}" y1="{self.top - self.over}" x2="{x}" y2="{height - self.under}" '
            'stroke="#57606a" stroke-dasharray="2 3"/>',
            f'<text x="{x}" y="{height - self.under + 13}" text-anchor="middle" '
            'style="font-size: 10px; fill: #57606a">eager</text>',
        ]


_MODELS = Bars(COLOURS, width=380, label=76, bar=11, gap=8, top=70, over=6, under=22)


def speed_chart(found: Sequence[Group]) -> str | None:
    """The drawing, or None where a chart's results are missing."""
    by_name = {(group.section, group.part): group for group in found}
    charts = [(by_name.get((section, part)), words) for section, part, words in CHARTS]
    if any(group is None for group, _ in charts):
        return None
    drawn = [(group, words) for group, words in charts if group is not None]
    height = _MODELS.top + max(len(group.rows) for group, _ in drawn) * _MODELS.step + 28
    lines = [
        *opening(_MODELS.width * len(drawn), height, "Speed-up over eager mode by model"),
        '<text x="12" y="22" style="font-weight: 600">Inference, speed-up over eager mode</text>',
        *_MODELS.legend(300, 12, 90, tuple(COLOURS)),
    ]
    for number, (group, words) in enumerate(drawn):
        left = number * _MODELS.width
        lines.append(f'<text x="{left + 12}" y="50" style="fill: #57606a">{escape(words)}</text>')
        lines += _MODELS.drawn([(row.name, _values(row)) for row in group.rows], left, height)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _values(row: Speed) -> dict[str, float]:
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
        *opening(DOT_WIDTH * len(charts), DOT_HEIGHT, "Speed-up over Inductor of each fused function"),
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
