"""Results as a picture, by matplotlib: bars for one point, lines over a sweep."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from polyfuse.base.errors import PolyfuseError
from polyfuse.bench.campaign import Point, Results


def require_matplotlib() -> Any:
    """The module that draws, without a display.

    Raises:
        PolyfuseError: it is not installed.
    """
    try:
        import_module("matplotlib").use("agg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise PolyfuseError("plots need matplotlib", "run pip install 'polyfuse[bench]'") from error


def plot(results: Results, file: Path) -> None:
    """Draw latency and speed-up into a PNG or SVG file, by its ending.

    Raises:
        PolyfuseError: the ending is unknown, or the file cannot be written.
    """
    pyplot = require_matplotlib()
    swept = [name for name in results.points[0].sizes if len({p.sizes[name] for p in results.points}) > 1]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    if len(swept) == 1:
        _lines(axes, results, swept[0])
    else:
        _bars(axes, results)
    figure.suptitle(f"{results.points[0].about}\n{results.machine.summary()}", fontsize=8)
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise PolyfuseError(f"{file} cannot be drawn ({error})", "name a .png or .svg file") from error
    finally:
        pyplot.close(figure)


def _lines(axes: Any, results: Results, name: str) -> None:
    engines = dict.fromkeys(m.engine for point in results.points for m in point.engines)
    for engine in engines:
        found = [
            (point.sizes[name], m) for point in results.points for m in point.engines if m.engine == engine
        ]
        times = [(size, m.latency.median) for size, m in found if m.latency is not None]
        ratios = [(size, m.speed_up) for size, m in found if m.speed_up is not None]
        axes[0].plot(*zip(*times), marker="o", label=engine) if times else None
        if ratios:
            sizes = [size for size, _ in ratios]
            axes[1].plot(sizes, [r.value for _, r in ratios], marker="o", label=engine)
            axes[1].fill_between(sizes, [r.low for _, r in ratios], [r.high for _, r in ratios], alpha=0.2)
    for axis, label in zip(axes, ("ms", "times as fast as eager mode"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xlabel(name)
        axis.set_ylabel(label)
        axis.legend()
    axes[0].set_yscale("log")
    axes[1].axhline(1, color="gray", linewidth=0.8)


def _bars(axes: Any, results: Results) -> None:
    rows = [(_label(point, m.engine), m) for point in results.points for m in point.engines]
    timed = [(label, m.latency) for label, m in rows if m.latency is not None]
    axes[0].barh([label for label, _ in timed], [x.median for _, x in timed])
    axes[0].errorbar(
        [x.median for _, x in timed],
        range(len(timed)),
        xerr=([0.0] * len(timed), [x.p90 - x.median for _, x in timed]),
        fmt="none",
        ecolor="black",
    )
    axes[0].set_xlabel("ms, median; line to the 90th percentile")
    ratios = [(label, m.speed_up) for label, m in rows if m.speed_up is not None]
    axes[1].barh([label for label, _ in ratios], [r.value for _, r in ratios])
    axes[1].errorbar(
        [r.value for _, r in ratios],
        range(len(ratios)),
        xerr=([r.value - r.low for _, r in ratios], [r.high - r.value for _, r in ratios]),
        fmt="none",
        ecolor="black",
    )
    axes[1].axvline(1, color="gray", linewidth=0.8)
    axes[1].set_xlabel("times as fast as eager mode")
    for axis in axes:
        axis.invert_yaxis()


def _label(point: Point, engine: str) -> str:
    return " ".join([engine, *(f"{name}={value}" for name, value in point.sizes.items())])
