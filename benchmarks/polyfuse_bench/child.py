"""Measurements in child processes: one crash costs one row, and cold starts are truly cold.

The parent hands over a task as JSON and reads the answer from a file; what the child prints goes to the
parent's report of a failure.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE_ROOT = Path(__file__).resolve().parent.parent

# A task's `kind` is the module whose `measure(task)` answers it.
TASKS = {
    "kernel": "polyfuse_bench.kernel_timing",
    "blocks": "polyfuse_bench.blocks",
    "linear": "polyfuse_bench.linear",
    "weights": "polyfuse_bench.weights",
    "flex": "polyfuse_bench.flex",
    "decode": "polyfuse_bench.decode",
    "host": "polyfuse_bench.host",
    "fusion_rules": "polyfuse_bench.fusion_rules",
    "gemm": "polyfuse_bench.gemm",
    "engines": "polyfuse_bench.engines",
    "model": "polyfuse_bench.model_timing",
    "compile": "polyfuse_bench.compile_time",
    "serving": "polyfuse_bench.serving",
    "callers": "polyfuse_bench.callers",
    "layers": "polyfuse_bench.layers",
    "any_size": "polyfuse_bench.any_size",
    "autotune_backends": "polyfuse_bench.autotune_backends",
    "memory": "polyfuse_bench.memory",
    "checkouts": "polyfuse_bench.checkouts",
}


class ChildFailed(RuntimeError):
    """The child crashed, raised, or ran out of time; the message says which."""


def run_child(
    task: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, timeout: float = 900.0
) -> Any:
    """Run `task` in a fresh Python process and answer what its `measure` returned."""
    with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "polyfuse_bench.child", json.dumps(dict(task)), str(answer)]
        try:
            finished = subprocess.run(
                command,
                env=child_environment(environment),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"took longer than {timeout:.0f} seconds") from None
        if answer.exists():
            content = json.loads(answer.read_text())
            if "error" in content:
                raise ChildFailed(content["error"])
            return content["result"]
        tail = " | ".join((finished.stderr or finished.stdout).strip().splitlines()[-3:])
        raise ChildFailed(f"{ending(finished.returncode)}: {tail}")


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment with this package on the path, and with byte code stored, as it is of installed
    packages."""
    merged = dict(os.environ if environment is None else environment)
    merged.pop("PYTHONDONTWRITEBYTECODE", None)
    merged["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE_ROOT), merged.get("PYTHONPATH"))))
    return merged


def main() -> None:
    task, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    try:
        content = {"result": importlib.import_module(TASKS[task["kind"]]).measure(task)}
    except Exception as error:
        traceback.print_exc()
        content = {"error": f"{type(error).__name__}: {first_line(error)}"}
    answer.write_text(json.dumps(content))


def ending(status: int | None) -> str:
    """How a process ended, in words."""
    if status is not None and status < 0:
        return f"the process was killed by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


def first_line(error: BaseException) -> str:
    """The first line that says something, cut to a table's width."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Dynamo announces a backend's error on a line of its own.
    telling = [line for line in lines if not line.endswith("raised:")] or lines
    return telling[0][:300] if telling else ""


if __name__ == "__main__":
    main()
