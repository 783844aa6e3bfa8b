"""`polyfuse explain`: run a program and tell what was compiled, what was fused, and what was not and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
import runpy
import sys
import traceback
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import set_environment
from polyfuse.cli.ranks import worlds

EXAMPLE = """
polyfuse explain model.py          # what matters first, then each graph
polyfuse explain --all model.py    # nothing is cut
polyfuse explain --json model.py > explained.json
polyfuse explain -m package.train --epochs 1
polyfuse explain --world 8,64,512 train.py     # one rank of larger worlds
polyfuse explain --world 8,64 --html worlds.html train.py
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("--all", action="store_true", help="cut no list")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; what the program prints goes to stderr"
    )
    worlds.configure(parser)
    configure_program(parser)


def configure_program(parser: argparse.ArgumentParser) -> None:
    """Add a program and its arguments."""
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, not a file")
    parser.add_argument("program", help="the Python program to run")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    rest.required = False  # argparse would name it among those that are missing


def run(arguments: argparse.Namespace) -> int:
    """Run the program, print what was compiled, and return the program's own status."""
    require_program(arguments.program, arguments.module)
    from contextlib import redirect_stdout

    from polyfuse.compiler.reports.explain import explain
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from polyfuse.reporting.collect import Collector
    from polyfuse.reporting.overview import overview, overview_text

    if arguments.html is not None and not arguments.world:
        raise PolyfuseError("--html is for --world alone", "write other pages with polyfuse report")
    # a graph that is read has no decisions to tell of
    set_environment(POLYFUSE_GRAPH_CACHE="0")
    reset_reports()
    if arguments.world:
        program = lambda: run_program(arguments.program, arguments.arguments, arguments.module)  # noqa: E731
        return worlds.run(arguments, program)
    collector = Collector()
    with redirect_stdout(sys.stderr if arguments.json else sys.stdout), collector.watching():
        status = run_program(arguments.program, arguments.arguments, arguments.module)
    data = overview(collector)
    if arguments.json:
        graphs = [dataclasses.asdict(report) for report in last_reports()]
        print(json.dumps({"overview": data, "graphs": graphs}, indent=2, default=str))
        return status
    print(overview_text(data), end="")
    if data["graphs"]:
        print()
        print(explain(last_reports(), everything=arguments.all), end="")
    return status


def require_program(program: str, module: bool = False) -> None:
    """Raise PolyfuseError where no file has that name, before anything is imported that takes seconds."""
    if not module and not Path(program).is_file():
        raise PolyfuseError(f"there is no file {program}", "name a Python program, or a module with -m")


def run_program(program: str, arguments: list[str], module: bool = False) -> int:
    """Run a program in this process, as `python program arguments` would, and return its status."""
    require_program(program, module)
    before = sys.argv, list(sys.path)
    sys.argv = [program, *arguments]
    try:
        if module:
            sys.path.insert(0, "")
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = before
    return 0
