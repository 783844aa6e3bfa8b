"""A graphics processor made of host memory, so that the way of CUDA tensors can be gone without one.

`fake_cuda.cpp` gives a torch that is built without CUDA two devices whose memory is the host's and whose
operators are the CPU's. It must be loaded before torch, so tests run functions in a process of its own:
`run`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["run", "unavailable"]

_HERE = Path(__file__).resolve().parent
_TESTS = _HERE.parent
_SOURCE = _HERE / "fake_cuda.cpp"
_SECONDS = 600


def unavailable() -> str:
    """Why there can be no fake device here; empty if there can."""
    import torch

    from requirements import GXX

    if torch.version.cuda is not None or torch.version.hip is not None:
        return "this torch is built for CUDA or ROCm, and the test gives the devices of one without them"
    return "" if shutil.which("g++") else GXX


def library() -> Path:
    """The built library; stored between runs, since building takes seconds."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch_folder = Path(spec.origin).parent
    version = (torch_folder / "version.py").read_bytes()
    # the folder too: the library finds torch's own where they were when it was built
    key = sha256(_SOURCE.read_bytes() + version + bytes(torch_folder)).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"polyfuse-fake-cuda-{os.getuid()}" / f"{key}.so"
    if not target.exists():
        target.parent.mkdir(mode=0o700, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        lib = torch_folder / "lib"
        command = [
            "g++",
            "-O0",
            "-DAT_PER_OPERATOR_HEADERS",  # all operators at once would be a quarter of its time
            "-std=c++20",
            "-shared",
            "-fPIC",
            str(_SOURCE),
            f"-I{torch_folder / 'include'}",
        ]
        command += [f"-L{lib}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{lib}", "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.rename(target)
    return target


def run(function: str, *arguments: Any, **environment: str) -> Any:
    """Call `"module:function"` of the tests in a process with fake devices; its answer travels as JSON."""
    with tempfile.TemporaryDirectory(prefix="polyfuse-fake-") as folder:
        answer = Path(folder) / "answer.json"
        variables = {
            **os.environ,
            "POLYFUSE_STRICT": "1",
            "POLYFUSE_VERIFY": "1",
            "POLYFUSE_CACHE_DIR": folder,
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(_TESTS), str(_TESTS.parent / "benchmarks"), os.environ.get("PYTHONPATH")))
            ),
            **environment,
        }
        task = json.dumps({"library": str(library()), "function": function, "arguments": arguments})
        command = [sys.executable, "-m", "fake_device.start", task, str(answer)]
        finished = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        assert finished.returncode == 0, f"{finished.stdout[-2000:]}\n{finished.stderr[-6000:]}"
        return json.loads(answer.read_text())
