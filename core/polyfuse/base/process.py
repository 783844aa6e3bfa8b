"""Running a program and turning its failure into an error that says what was run and what it printed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfuse.base.errors import KernelBuildError

__all__ = ["run_program"]


def run_program(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    timeout: float = 600.0,
    env: Mapping[str, str] | None = None,
    name: str = "",
    text: str | None = None,
) -> str:
    """Run a compiler or the like, in `folder`, and return what it printed on both streams.

    `text` is given to it as its standard input. Raises `KernelBuildError`, with the command and the output,
    when the program is missing, fails, or takes longer than `timeout` seconds; then it is ended with all its
    children.
    """
    what = f"building {name}" if name else Path(command[0]).name
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(env) if env is not None else None,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise KernelBuildError(
            f"{command[0]} cannot be started ({error.strerror})",
            "install it, or name another program",
            command=command,
            name=name,
        ) from error
    try:
        output, _ = process.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired:
        _end_group(process)
        output, _ = process.communicate()
        raise KernelBuildError(
            f"{what} took longer than {timeout:.0f} seconds",
            "raise the option `build_timeout`",
            command=command,
            output=output or "",
            name=name,
        ) from None
    except BaseException:
        _end_group(process)
        process.wait()
        raise
    if process.returncode:
        raise KernelBuildError(
            f"{what} failed with status {process.returncode}",
            "the output below says why",
            command=command,
            output=output,
            name=name,
        )
    return output


def _end_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
