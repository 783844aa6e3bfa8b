"""`polyfuse bench`: a model in eager mode, by torch's default compiler, and by each backend, side by side."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from polyfuse.base.errors import InvalidOptionError, PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.bench.campaign import NotRun, Plan, run_campaign
from polyfuse.bench.engine import EAGER, TORCH, Engine, parse_engines
from polyfuse.bench.plot import plot, require_matplotlib
from polyfuse.bench.table import as_data, print_results
from polyfuse.cli.availability import Availability, PluginStatus, in_order, status_of
from polyfuse.cli.terminal import seconds_of
from polyfuse.plugin import PluginManager

EXAMPLE = """
polyfuse bench model.py                               # the first function that it compiles and calls
polyfuse bench package.module:make --sweep batch=1,2,4..64 --budget 5m
polyfuse bench hf:bert,num_hidden_layers=2 --json out.json --plot out.svg
polyfuse bench model.py --engines eager,polyfuse,polyfuse@max-autotune -- --layers 4
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument(
        "subject",
        help="program.py; module:function, which returns (function, arguments); or hf: and a model type or "
        "class of transformers, made with random weights",
    )
    parser.add_argument("arguments", nargs="*", help="arguments of the program, after --")
    parser.add_argument(
        "--engines",
        metavar="NAMES",
        help="eager, polyfuse, backends of it and compilers of torch, each with @mode",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="sizes, as batch=1,2,4..64; a program "
        "gets them as --NAME VALUE, a function as keyword arguments, hf: has batch and sequence",
    )
    parser.add_argument(
        "--budget", type=seconds_of, default=0.0, metavar="TIME", help="for all of it, as 60s or 5m"
    )
    parser.add_argument("--device", default="", help="where functions and hf: models run")
    parser.add_argument("--training", action="store_true", help="the gradients of the results' sum, too")
    parser.add_argument("--dynamic", action="store_true", default=None, help="compile with dynamic sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results; - for standard output")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them into a .png or .svg file")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the status is 1 where an engine's results differ from eager mode's."""
    if arguments.subject.endswith(".py") and not Path(arguments.subject).is_file():
        # each engine would say so of itself, seconds later
        raise PolyfuseError(
            f"there is no file {arguments.subject}",
            "name a Python program, a module:function, or hf:configuration",
        )
    if arguments.plot is not None:
        require_matplotlib()
    manager = PluginManager(Settings.resolve())
    found = [status_of(manager, state.name, load=True) for state in manager.states()]
    engines = _engines(arguments, manager, found)
    plan = Plan(
        arguments.subject,
        tuple(arguments.arguments),
        engines,
        tuple(points([sweep_of(text) for text in arguments.sweep])),
        arguments.device,
        arguments.training,
        arguments.dynamic,
        arguments.budget,
    )
    screen = Console(stderr=True)
    with screen.status("starting") as status:
        results = run_campaign(plan, lambda text: status.update(text))
    if arguments.engines is None:
        results.not_run += [NotRun(item.plugin.name, item.reason) for item in found if _is_left_out(item)]
    data = json.dumps(as_data(results), indent=2)
    if arguments.json == Path("-"):
        print(data)
    else:
        print_results(Console(), results)
    if arguments.json not in (None, Path("-")):
        _write(arguments.json, data + "\n")
    if arguments.plot is not None:
        plot(results, arguments.plot)
    checks = [item.check for point in results.points for item in point.engines if item.check]
    return 1 if any(check["compared"] and not check["ok"] for check in checks) else 0


def _engines(
    arguments: argparse.Namespace, manager: PluginManager, found: list[Availability]
) -> tuple[Engine, ...]:
    """Those asked for, or eager mode, torch's default compiler, and each backend that is ready."""
    names = [item.plugin.name for item in found]
    if arguments.engines is not None:
        engines = parse_engines(arguments.engines, names)
        for name in dict.fromkeys(name for engine in engines for name in engine.backends):
            manager.require(name)
        return engines
    device = arguments.device.partition(":")[0]
    ready = in_order(found, manager, device or "cpu")
    if not device:
        import torch

        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is not None:
            ready = (*in_order(found, manager, accelerator.type), *ready)
    return parse_engines(",".join((EAGER, TORCH, *dict.fromkeys(ready))), names)


def _is_left_out(item: Availability) -> bool:
    """Whether a plugin cannot be used that brings a code generator, as far as is known."""
    manifest = item.plugin.manifest
    return item.status is not PluginStatus.READY and (manifest is None or bool(manifest.load))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        print(text, file=sys.stdout)
        raise PolyfuseError(f"{file} cannot be written ({error})", "name another file") from error


def sweep_of(text: str) -> tuple[str, tuple[int, ...]]:
    """A name and its values: `batch=1,2,4..64` is 1, 2, and then 4 doubled up to 64.

    Raises:
        InvalidOptionError: the text is something else.
    """
    name, equals, values = text.partition("=")
    found: dict[int, None] = {}
    for word in values.split(","):
        pair = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", word)
        if not equals or not name.isidentifier() or pair is None:
            raise InvalidOptionError(f"{text!r} is no sweep", "write name=values, as in batch=1,2,4..64")
        value, last = int(pair[1]), int(pair[2] or pair[1])
        while value <= last:
            found[value] = None
            value = value * 2 if value else 1
    return name, tuple(found)


def points(sweeps: Sequence[tuple[str, Sequence[int]]]) -> list[Mapping[str, int]]:
    """Every combination of the values of all sweeps; one without sizes where there are none."""
    names = [name for name, _ in sweeps]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(v for _, v in sweeps))]
