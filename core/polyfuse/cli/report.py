"""`polyfuse report`: run a program and write an HTML page of what was compiled, why, and what it costs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import child_environment
from polyfuse.cli.explain import require_program

EXAMPLE = """
polyfuse report train.py
polyfuse report -o before.html train.py -- --steps 3
polyfuse report --compare before.html train.py -- --steps 3
"""

_ABOUT = """

The program runs twice, each time in a process of its own: first with an empty cache folder, then, for the
time of a warm compile, with what the first run left there. --once leaves the second run out."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.description = f"{parser.description}{_ABOUT}"
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("polyfuse-report.html"),
        metavar="FILE",
        help="the page to write",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same data as JSON, too")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OLD",
        help="show what changed since an earlier report, HTML or JSON",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile each module that the program calls, and use Polyfuse where torch.compile names no "
        "backend; done anyway if the program compiles nothing with Polyfuse",
    )
    parser.add_argument(
        "--once", action="store_true", help="run the program once: no times of a warm compile"
    )
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, not a file")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", help="the Python program to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program, after --")


def run(arguments: argparse.Namespace) -> int:
    """Write the report, and return the status of the program's first run."""
    if arguments.arguments[:1] == ["--"]:
        del arguments.arguments[0]
    if arguments.collect is not None:
        return _collect(arguments)
    require_program(arguments.program, arguments.module)
    from polyfuse.reporting.compare import compare
    from polyfuse.reporting.page import read_report, write_json, write_page

    earlier = None if arguments.compare is None else read_report(arguments.compare)
    with tempfile.TemporaryDirectory(prefix="polyfuse-report-") as name:
        folder = Path(name)
        status, data = _child(arguments, folder, warm=False)
        if data is None:
            raise PolyfuseError(
                f"{arguments.program} ended with status {status} before anything could be written",
                "let it end as Python programs do, not by os._exit or a signal",
            )
        if status == 0 and not data["graphs"] and not arguments.compile:
            _say("the program compiled nothing with Polyfuse; running it again with --compile")
            arguments.compile = True
            status, again = _child(arguments, folder, warm=False)
            data = data if again is None else again
        if not arguments.once and status == 0:
            _say("running it again, for the time of a warm compile")
            _, again = _child(arguments, folder, warm=True)
            data["times"]["warm"] = again
    data["status"] = status
    if earlier is not None:
        data["compare"] = compare(earlier, data)
    write_page(arguments.output, data)
    if arguments.json is not None:
        write_json(arguments.json, data)
    _say(f"wrote {arguments.output} ({arguments.output.stat().st_size / 1e6:.1f} MB)")
    return status


def _child(arguments: argparse.Namespace, folder: Path, warm: bool) -> tuple[int, dict[str, Any] | None]:
    """Run the program in a process of its own, and return its status and what was collected."""
    found = folder / ("warm.json" if warm else "cold.json")
    command = [sys.executable, "-m", "polyfuse", "report", "--collect", str(found)]
    command += ["--warm"] * warm + ["-m"] * arguments.module + ["--compile"] * arguments.compile
    command += [arguments.program, *(["--", *arguments.arguments] if arguments.arguments else [])]
    environment = child_environment(POLYFUSE_CACHE_DIR=str(folder / "cache"))
    done = subprocess.run(command, env=environment, check=False)
    text = found.read_text(encoding="utf-8") if found.is_file() else ""
    return done.returncode, json.loads(text) if text else None


def _collect(arguments: argparse.Namespace) -> int:
    """Run the program here, and write what was seen."""
    from polyfuse.cli.explain import run_program
    from polyfuse.reporting.adopt import adopting
    from polyfuse.reporting.collect import Collector
    from polyfuse.reporting.describe import compile_times, describe

    collector = Collector(measure=not arguments.warm)
    with collector.watching(), adopting() if arguments.compile else nullcontext():
        status = run_program(arguments.program, arguments.arguments, arguments.module)
    if arguments.warm:
        data = compile_times(collector)
    else:
        title = " ".join([Path(arguments.program).name, *arguments.arguments])
        data = describe(collector, title)
    arguments.collect.write_text(json.dumps(data), encoding="utf-8")
    return status


def _say(text: str) -> None:
    print(f"polyfuse report: {text}", file=sys.stderr)
