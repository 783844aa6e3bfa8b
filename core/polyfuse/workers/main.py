"""A worker process: reads one request a line, builds, answers with one line.

Run as `python -m polyfuse.workers.main`. It imports the function named in a request and nothing else, so that
it starts in a fraction of the time that torch takes. It ends when its standard input is closed, which also
happens when the parent dies.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.plugin import Source


def main() -> int:
    """Serve requests until the input ends."""
    # The protocol keeps the real output to itself: whatever a library prints goes to the error stream.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _start(sys.argv[1:])
    for line in sys.stdin:
        channel.write(json.dumps(_answer(json.loads(line))) + "\n")
        channel.flush()
    return 0


def _start(arguments: Sequence[str]) -> None:
    if len(arguments) == 2:
        try:
            _resolve(arguments[0])(json.loads(arguments[1]))
        except Exception:
            # the first build will meet the same, and report it
            traceback.print_exc()


def _answer(request: Mapping[str, object]) -> Mapping[str, object]:
    try:
        build = _resolve(str(request["function"]))
        sources = [Source(**source) for source in request["sources"]]  # type: ignore[attr-defined]
        build(sources, Path(str(request["folder"])), request["options"])
    except KernelBuildError as error:
        return {
            "ok": False,
            "cause": error.cause,
            "fix": error.fix,
            "command": list(error.command),
            "output": error.output,
        }
    except UnsupportedError as error:
        return {"ok": False, "refused": True, "cause": error.cause, "fix": error.fix}
    except Exception as error:
        return {
            "ok": False,
            "cause": f"building raised {type(error).__name__}: {error}",
            "fix": "report it to the backend's author",
            "command": [],
            "output": "",
        }
    return {"ok": True}


@cache
def _resolve(path: str) -> Callable[..., None]:
    module, _, attribute = path.partition(":")
    found: Callable[..., None] = getattr(import_module(module), attribute)
    return found


if __name__ == "__main__":
    sys.exit(main())
