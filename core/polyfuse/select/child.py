"""The process in which candidates run: they may crash it or never return, and nothing else is harmed.

Run as `python -m polyfuse.select.child DESCRIPTOR`, with a pipe to the process that compiles. It answers one
request at a time, and ends when the pipe is closed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from polyfuse.plugin import Backend
from polyfuse.select.bench import Bench
from polyfuse.select.work import Circumstances
from polyfuse.torch_compat.devices.precision import set_library_flags

__all__ = ["main"]


def main() -> int:
    """Serve requests until the pipe is closed."""
    with contextlib.suppress(OSError):  # should memory run out, this process is the one to lose
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    channel = Connection(int(sys.argv[1]))
    bench: Bench | None = None
    while True:
        try:
            name, arguments, limit = channel.recv()
        except EOFError:
            return 0
        # whoever waits ends this process when it takes too long; should nobody wait any more, it ends itself
        answer: tuple[str, object]
        faulthandler.dump_traceback_later(2 * limit + 10, exit=True)
        try:
            if name == "start":
                bench = _started(*arguments)
                answer = ("done", None)
            else:
                answer = ("done", getattr(bench, name)(*arguments))
        except BaseException as error:
            answer = ("raised", f"{type(error).__name__}: {error}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        channel.send(answer)


def _started(circumstances: Circumstances) -> Bench:
    torch.set_num_threads(circumstances.threads)
    set_library_flags(circumstances.flags)
    torch.set_grad_enabled(False)
    return Bench(_loader(circumstances))


def _loader(circumstances: Circumstances) -> Callable[[str], Backend]:
    made: dict[str, Backend] = {}

    def backend(name: str) -> Backend:
        if name not in made:
            module, _, attribute = circumstances.backends[name].partition(":")
            factory: Any = getattr(import_module(module), attribute)
            made[name] = factory(circumstances.settings)
            made[name].name = name
        return made[name]

    return backend


if __name__ == "__main__":
    # at once: nothing is left to be saved, and to tear down torch takes longer than whoever waits may like
    os._exit(main())
